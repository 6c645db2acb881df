"""The tables of the pages, made from what benchmarks wrote: a function each, in a file for each part."""
