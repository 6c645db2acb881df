/* Fails the n-th call that changes a watched folder, or ends the process there.

   Preloaded into a process (LD_PRELOAD), it stands before the functions of the C library. It does nothing until
   `arm_faults` is called, which a forked child does through ctypes. What was called stands in a report, a shared mapping of a file
   outside of the watched folder: it survives a SIGKILL. What calls the system without the C library is not seen, as the
   renames of temporary files inside safetensors and Lance. Flushes are counted but not passed on: no test here cuts the
   power, and waiting for the disk is most of the time. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum fault { NONE, ENOSPC_ONCE, EIO_ONCE, FULL, SHORT, HALF, KILL_BEFORE, KILL_AFTER, INTERRUPT, TERMINATE };

/* What a call does, one letter each: layer.py knows them too. */
#define OPEN 'o'   /* opens a file for writing, or makes it */
#define WRITE 'w'  /* gives bytes to a descriptor: may write only some of them */
#define STREAM 's' /* gives bytes to a FILE, or flushes it */
#define FLUSH 'f'
#define MOVE 'm'
#define MAKE 'd' /* a folder or a link */
#define CUT 't'  /* sets a length */
#define REMOVE 'r'

#define MOST_CALLS 8192

struct call {
    char kind;
    char name[23];
    char path[224];
    long size; /* bytes that were to be written */
};

struct report {
    atomic_long count;
    atomic_long hit; /* which call the fault fell on; 0: none so far */
    struct call calls[MOST_CALLS];
};

static struct report *report = NULL;
static char watched[PATH_MAX];
static size_t watched_length;
static enum fault fault;
static long due;
static atomic_int room_is_gone; /* after a short write */

int arm_faults(const char *folder, const char *report_path, long number, int kind) {
    int descriptor = open(report_path, O_RDWR | O_CREAT, 0600);
    if (descriptor < 0 || ftruncate(descriptor, sizeof(struct report)))
        return -1;
    void *mapped = mmap(NULL, sizeof(struct report), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    close(descriptor);
    if (mapped == MAP_FAILED || !realpath(folder, watched))
        return -1;
    watched_length = strlen(watched);
    fault = (enum fault)kind;
    due = number;
    atomic_thread_fence(memory_order_seq_cst);
    report = mapped;
    return 0;
}

static int is_watched(const char *path) {
    return strncmp(path, watched, watched_length) == 0 && (path[watched_length] == '/' || path[watched_length] == 0);
}

/* The path of a descriptor; whether it is watched. */
static int path_of(int descriptor, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return is_watched(path);
}

/* What a name means, with every folder above it resolved, the last part not; whether it is watched. */
static int resolve(int folder, const char *name, char *path) {
    char whole[2 * PATH_MAX], above[PATH_MAX];
    if (name == NULL)
        return 0;
    if (name[0] == '/' || folder == AT_FDCWD)
        snprintf(whole, PATH_MAX, "%s", name);
    else {
        path_of(folder, above);
        snprintf(whole, sizeof whole, "%s/%s", above, name);
    }
    size_t length = strlen(whole);
    while (length > 1 && whole[length - 1] == '/')
        whole[--length] = 0;
    char *slash = strrchr(whole, '/');
    const char *last = slash ? slash + 1 : whole;
    if (slash == whole)
        return 0; /* directly below the root */
    if (slash)
        *slash = 0;
    if (!realpath(slash ? whole : ".", above))
        return 0;
    if (snprintf(path, PATH_MAX, "%s/%s", above, last) >= PATH_MAX)
        return 0;
    return is_watched(path);
}

static int can_fall_on(char kind, size_t size) {
    switch (fault) {
    case ENOSPC_ONCE:
    case EIO_ONCE:
        return kind != REMOVE;
    case FULL:
        return kind == OPEN || kind == WRITE || kind == STREAM || kind == MAKE;
    case SHORT:
        return (kind == WRITE && size > 1) || kind == STREAM;
    case HALF:
        return kind == WRITE && size > 1;
    case KILL_BEFORE:
    case KILL_AFTER:
    case INTERRUPT:
    case TERMINATE:
        return 1;
    default:
        return 0;
    }
}

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

/* Count a call, and say what is to become of it. */
static enum fault count_bytes(char kind, const char *name, const char *path, size_t size) {
    if (report == NULL)
        return NONE;
    long number = atomic_fetch_add(&report->count, 1) + 1;
    if (number <= MOST_CALLS) {
        struct call *call = &report->calls[number - 1];
        call->kind = kind;
        call->size = (long)size;
        snprintf(call->name, sizeof call->name, "%s", name);
        const char *inside = path + watched_length;
        snprintf(call->path, sizeof call->path, "%s", *inside ? inside + 1 : ".");
    }
    if ((kind == WRITE || kind == STREAM) && atomic_exchange(&room_is_gone, 0))
        return ENOSPC_ONCE;
    if (!can_fall_on(kind, size) || (fault == FULL ? number < due || due == 0 : number != due))
        return NONE;
    long none = 0;
    atomic_compare_exchange_strong(&report->hit, &none, number);
    if (fault == KILL_BEFORE)
        die();
    if (fault == INTERRUPT || fault == TERMINATE) /* the program hears of it as soon as it is its turn */
        kill(getpid(), fault == INTERRUPT ? SIGINT : SIGTERM);
    return fault;
}

static enum fault count(char kind, const char *name, const char *path) { return count_bytes(kind, name, path, 0); }

static int fails(enum fault now) {
    if (now != ENOSPC_ONCE && now != EIO_ONCE && now != FULL)
        return 0;
    errno = now == EIO_ONCE ? EIO : ENOSPC;
    return 1;
}

#define REAL(type, name, ...)                                                                                          \
    static type (*real)(__VA_ARGS__) = NULL;                                                                           \
    if (real == NULL)                                                                                                  \
    real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

/* Everything below is one pattern: count, fail or not, call what was asked for, end the process or not. */
#define PASS(type, failure, call)                                                                                      \
    if (fails(now))                                                                                                    \
        return failure;                                                                                                \
    type result = call;                                                                                                \
    if (now == KILL_AFTER)                                                                                             \
        die();                                                                                                         \
    return result

#define WRITING (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)

static mode_t mode_of(int flags, va_list arguments) {
    return flags & (O_CREAT | __O_TMPFILE) ? va_arg(arguments, mode_t) : 0;
}

#define OPENING(symbol)                                                                                                \
    int symbol(const char *name, int flags, ...) {                                                                     \
        REAL(int, #symbol, const char *, int, ...);                                                                    \
        va_list arguments;                                                                                             \
        va_start(arguments, flags);                                                                                    \
        mode_t mode = mode_of(flags, arguments);                                                                       \
        va_end(arguments);                                                                                             \
        char path[PATH_MAX];                                                                                           \
        enum fault now = NONE;                                                                                         \
        if (report && (flags & WRITING) && resolve(AT_FDCWD, name, path))                                              \
            now = count(OPEN, #symbol, path);                                                                          \
        PASS(int, -1, real(name, flags, mode));                                                                        \
    }
OPENING(open)
OPENING(open64)

#define OPENING_AT(symbol)                                                                                             \
    int symbol(int folder, const char *name, int flags, ...) {                                                         \
        REAL(int, #symbol, int, const char *, int, ...);                                                               \
        va_list arguments;                                                                                             \
        va_start(arguments, flags);                                                                                    \
        mode_t mode = mode_of(flags, arguments);                                                                       \
        va_end(arguments);                                                                                             \
        char path[PATH_MAX];                                                                                           \
        enum fault now = NONE;                                                                                         \
        if (report && (flags & WRITING) && resolve(folder, name, path))                                                \
            now = count(OPEN, #symbol, path);                                                                          \
        PASS(int, -1, real(folder, name, flags, mode));                                                                \
    }
OPENING_AT(openat)
OPENING_AT(openat64)

#define CREATING(symbol)                                                                                               \
    int symbol(const char *name, mode_t mode) {                                                                        \
        REAL(int, #symbol, const char *, mode_t);                                                                      \
        char path[PATH_MAX];                                                                                           \
        enum fault now = report && resolve(AT_FDCWD, name, path) ? count(OPEN, #symbol, path) : NONE;                  \
        PASS(int, -1, real(name, mode));                                                                               \
    }
CREATING(creat)
CREATING(creat64)

/* Half of the bytes; after a short write there is no room for what is left. */
static size_t half(enum fault now, size_t size) {
    if (now != SHORT && now != HALF)
        return size;
    if (now == SHORT)
        atomic_store(&room_is_gone, 1);
    return size / 2;
}

#define DESCRIPTOR(kind, symbol, size)                                                                                 \
    char path[PATH_MAX];                                                                                               \
    enum fault now = report && path_of(descriptor, path) ? count_bytes(kind, symbol, path, size) : NONE

ssize_t write(int descriptor, const void *bytes, size_t size) {
    REAL(ssize_t, "write", int, const void *, size_t);
    DESCRIPTOR(WRITE, "write", size);
    PASS(ssize_t, -1, real(descriptor, bytes, half(now, size)));
}

#define WRITING_AT(symbol, offset_type)                                                                                \
    ssize_t symbol(int descriptor, const void *bytes, size_t size, offset_type offset) {                               \
        REAL(ssize_t, #symbol, int, const void *, size_t, offset_type);                                                \
        DESCRIPTOR(WRITE, #symbol, size);                                                                              \
        PASS(ssize_t, -1, real(descriptor, bytes, half(now, size), offset));                                           \
    }
WRITING_AT(pwrite, off_t)
WRITING_AT(pwrite64, off64_t)

static size_t whole_of(const struct iovec *parts, int number) {
    size_t whole = 0;
    for (int place = 0; place < number; place++)
        whole += parts[place].iov_len;
    return whole;
}

/* Of several buffers a short write takes half of the first one. */
static struct iovec shortened(enum fault now, const struct iovec *parts, int number, int *left) {
    struct iovec first = number > 0 ? parts[0] : (struct iovec){NULL, 0};
    *left = number;
    if ((now == SHORT || now == HALF) && first.iov_len > 1) {
        first.iov_len = half(now, first.iov_len);
        *left = 1;
    }
    return first;
}

ssize_t writev(int descriptor, const struct iovec *parts, int number) {
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    DESCRIPTOR(WRITE, "writev", whole_of(parts, number));
    int left;
    struct iovec first = shortened(now, parts, number, &left);
    PASS(ssize_t, -1, real(descriptor, left < number ? &first : parts, left));
}

#define WRITING_PARTS_AT(symbol, offset_type)                                                                          \
    ssize_t symbol(int descriptor, const struct iovec *parts, int number, offset_type offset) {                        \
        REAL(ssize_t, #symbol, int, const struct iovec *, int, offset_type);                                           \
        DESCRIPTOR(WRITE, #symbol, whole_of(parts, number));                                                 \
        int left;                                                                                                      \
        struct iovec first = shortened(now, parts, number, &left);                                                     \
        PASS(ssize_t, -1, real(descriptor, left < number ? &first : parts, left, offset));                             \
    }
WRITING_PARTS_AT(pwritev, off_t)
WRITING_PARTS_AT(pwritev64, off64_t)

#define SENDING(symbol, offset_type)                                                                                   \
    ssize_t symbol(int descriptor, int from, offset_type *offset, size_t size) {                                       \
        REAL(ssize_t, #symbol, int, int, offset_type *, size_t);                                                       \
        DESCRIPTOR(WRITE, #symbol, size);                                                                              \
        PASS(ssize_t, -1, real(descriptor, from, offset, half(now, size)));                                            \
    }
SENDING(sendfile, off_t)
SENDING(sendfile64, off64_t)

ssize_t copy_file_range(int from, off64_t *start, int descriptor, off64_t *offset, size_t size, unsigned flags) {
    REAL(ssize_t, "copy_file_range", int, off64_t *, int, off64_t *, size_t, unsigned);
    DESCRIPTOR(WRITE, "copy_file_range", size);
    PASS(ssize_t, -1, real(from, start, descriptor, offset, half(now, size), flags));
}

#define CUTTING(symbol, offset_type)                                                                                   \
    int symbol(int descriptor, offset_type length) {                                                                   \
        REAL(int, #symbol, int, offset_type);                                                                          \
        DESCRIPTOR(CUT, #symbol, 0);                                                                                   \
        PASS(int, -1, real(descriptor, length));                                                                       \
    }
CUTTING(ftruncate, off_t)
CUTTING(ftruncate64, off64_t)

#define RESERVING(symbol, offset_type)                                                                                 \
    int symbol(int descriptor, int mode, offset_type offset, offset_type length) {                                     \
        REAL(int, #symbol, int, int, offset_type, offset_type);                                                        \
        DESCRIPTOR(CUT, #symbol, 0);                                                                                   \
        PASS(int, -1, real(descriptor, mode, offset, length));                                                         \
    }
RESERVING(fallocate, off_t)
RESERVING(fallocate64, off64_t)

#define FLUSHING(symbol)                                                                                               \
    int symbol(int descriptor) {                                                                                       \
        REAL(int, #symbol, int);                                                                                       \
        char path[PATH_MAX];                                                                                           \
        int here = report && path_of(descriptor, path);                                                                \
        enum fault now = here ? count(FLUSH, #symbol, path) : NONE;                                                    \
        PASS(int, -1, here ? 0 : real(descriptor));                                                                    \
    }
FLUSHING(fsync)
FLUSHING(fdatasync)

/* A FILE keeps bytes to itself until it is flushed or closed: if that fails, they are lost. */

static int for_writing(const char *mode) { return mode[0] != 'r' || strchr(mode, '+') != NULL; }

#define OPENING_STREAM(symbol)                                                                                         \
    FILE *symbol(const char *name, const char *mode) {                                                                 \
        REAL(FILE *, #symbol, const char *, const char *);                                                             \
        char path[PATH_MAX];                                                                                           \
        enum fault now = NONE;                                                                                         \
        if (report && for_writing(mode) && resolve(AT_FDCWD, name, path))                                              \
            now = count(OPEN, #symbol, path);                                                                          \
        PASS(FILE *, NULL, real(name, mode));                                                                          \
    }
OPENING_STREAM(fopen)
OPENING_STREAM(fopen64)

#define STREAMING(symbol, size)                                                                                            \
    char path[PATH_MAX];                                                                                               \
    int descriptor = report ? fileno(stream) : -1;                                                                     \
    int here = descriptor >= 0 && __fwritable(stream) && path_of(descriptor, path);                                    \
    enum fault now = here ? count_bytes(STREAM, symbol, path, size) : NONE;                                            \
    if (now == SHORT)                                                                                                  \
    now = ENOSPC_ONCE

size_t fwrite(const void *bytes, size_t size, size_t number, FILE *stream) {
    REAL(size_t, "fwrite", const void *, size_t, size_t, FILE *);
    STREAMING("fwrite", size * number);
    PASS(size_t, 0, real(bytes, size, number, stream));
}

int fflush(FILE *stream) {
    REAL(int, "fflush", FILE *);
    if (stream == NULL)
        return real(stream);
    STREAMING("fflush", 0);
    if (now == ENOSPC_ONCE || now == EIO_ONCE || now == FULL)
        __fpurge(stream);
    PASS(int, EOF, real(stream));
}

int fclose(FILE *stream) {
    REAL(int, "fclose", FILE *);
    STREAMING("fclose", 0);
    if (now == ENOSPC_ONCE || now == EIO_ONCE || now == FULL) {
        __fpurge(stream);
        real(stream);
    }
    PASS(int, EOF, real(stream));
}

int rename(const char *from, const char *to) {
    REAL(int, "rename", const char *, const char *);
    char path[PATH_MAX];
    enum fault now = report && resolve(AT_FDCWD, to, path) ? count(MOVE, "rename", path) : NONE;
    PASS(int, -1, real(from, to));
}

int renameat(int folder, const char *from, int other, const char *to) {
    REAL(int, "renameat", int, const char *, int, const char *);
    char path[PATH_MAX];
    enum fault now = report && resolve(other, to, path) ? count(MOVE, "renameat", path) : NONE;
    PASS(int, -1, real(folder, from, other, to));
}

int renameat2(int folder, const char *from, int other, const char *to, unsigned flags) {
    REAL(int, "renameat2", int, const char *, int, const char *, unsigned);
    char path[PATH_MAX];
    enum fault now = report && resolve(other, to, path) ? count(MOVE, "renameat2", path) : NONE;
    PASS(int, -1, real(folder, from, other, to, flags));
}

/* Making what is there already changes nothing, and is no call that could fail for want of room. */
static int is_there(const char *path) {
    struct stat status;
    return lstat(path, &status) == 0;
}

int mkdir(const char *name, mode_t mode) {
    REAL(int, "mkdir", const char *, mode_t);
    char path[PATH_MAX];
    int makes = report && resolve(AT_FDCWD, name, path) && !is_there(path);
    enum fault now = makes ? count(MAKE, "mkdir", path) : NONE;
    PASS(int, -1, real(name, mode));
}

int mkdirat(int folder, const char *name, mode_t mode) {
    REAL(int, "mkdirat", int, const char *, mode_t);
    char path[PATH_MAX];
    int makes = report && resolve(folder, name, path) && !is_there(path);
    enum fault now = makes ? count(MAKE, "mkdirat", path) : NONE;
    PASS(int, -1, real(folder, name, mode));
}

int link(const char *from, const char *to) {
    REAL(int, "link", const char *, const char *);
    char path[PATH_MAX];
    enum fault now = report && resolve(AT_FDCWD, to, path) ? count(MAKE, "link", path) : NONE;
    PASS(int, -1, real(from, to));
}

int linkat(int folder, const char *from, int other, const char *to, int flags) {
    REAL(int, "linkat", int, const char *, int, const char *, int);
    char path[PATH_MAX];
    enum fault now = report && resolve(other, to, path) ? count(MAKE, "linkat", path) : NONE;
    PASS(int, -1, real(folder, from, other, to, flags));
}

int symlink(const char *target, const char *name) {
    REAL(int, "symlink", const char *, const char *);
    char path[PATH_MAX];
    enum fault now = report && resolve(AT_FDCWD, name, path) ? count(MAKE, "symlink", path) : NONE;
    PASS(int, -1, real(target, name));
}

#define REMOVING(symbol)                                                                                               \
    int symbol(const char *name) {                                                                                     \
        REAL(int, #symbol, const char *);                                                                              \
        char path[PATH_MAX];                                                                                           \
        enum fault now = report && resolve(AT_FDCWD, name, path) ? count(REMOVE, #symbol, path) : NONE;                \
        PASS(int, -1, real(name));                                                                                     \
    }
REMOVING(unlink)
REMOVING(rmdir)
REMOVING(remove)

int unlinkat(int folder, const char *name, int flags) {
    REAL(int, "unlinkat", int, const char *, int);
    char path[PATH_MAX];
    enum fault now = report && resolve(folder, name, path) ? count(REMOVE, "unlinkat", path) : NONE;
    PASS(int, -1, real(folder, name, flags));
}
