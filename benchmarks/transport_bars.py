def summarise(store): return {}
def find_bars(store): return {}, []
def draw(*a): pass
def report(c): print(c)
