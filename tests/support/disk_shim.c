/* A disk that fails, and one that loses power. Between a process and libc: pwrite, fsync, fdatasync.
 *
 * DISK_SHIM names a file of one order, read at each call that it may be about:
 *     <nonce> <sync|write> <end of the file's name | dir> <largest last write> <what> <times> <ms>
 * where what is eio, enospc, short, slow, or stuck: slow, and told of. A new nonce is a new order. Everything done to
 * log and body files from the first fault on is told in "<file>.seen", a line a call: "<fault|ok> <sync|write> <name>".
 *
 * DISK_UNDO names a directory. What a write replaces is kept there, by the file's name, until a sync of that file has
 * returned: whoever kills the process can then put it back, as if the power had gone too. Names (creations,
 * deletions) are not undone, nor is fallocate. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FILES 4096

struct order {
    long nonce, last_max, times, ms;
    char call[8], name[24], action[8];
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct order current;
static size_t last_write[FILES];
static int struck;

static int ends_with(const char *text, const char *end) {
    size_t length = strlen(text), wanted = strlen(end);
    return length >= wanted && strcmp(text + length - wanted, end) == 0;
}

static int name_of(int file, char *path, size_t size) {
    char link[40];
    struct stat found;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, size - 1);
    if (length < 0) return 0;
    path[length] = 0;
    if (fstat(file, &found) == 0 && S_ISDIR(found.st_mode)) strncat(path, "/dir", size - length - 1);
    return 1;
}

static int is_data(const char *path) { return ends_with(path, ".log") || ends_with(path, ".bodies"); }

static void tell(const char *what, const char *call, const char *path) {
    char seen[512], line[512];
    const char *base = strrchr(path, '/');
    snprintf(seen, sizeof seen, "%s.seen", getenv("DISK_SHIM"));
    int file = open(seen, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0) return;
    int length = snprintf(line, sizeof line, "%s %s %s\n", what, call, base ? base + 1 : path);
    if (write(file, line, length) != length) abort();
    close(file);
}

/* The order that is due for this call, with one of its times taken; 0 if there is none. */
static int ordered(const char *call, const char *path, size_t last, struct order *out) {
    const char *control = getenv("DISK_SHIM");
    char text[128] = {0};
    struct order order = {0};
    int due = 0;
    if (!control) return 0;
    int file = open(control, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    if (read(file, text, sizeof text - 1) < 0) text[0] = 0;
    close(file);
    pthread_mutex_lock(&mutex);
    if (sscanf(text, "%ld %7s %23s %ld %7s %ld %ld", &order.nonce, order.call, order.name, &order.last_max,
               order.action, &order.times, &order.ms) == 7) {
        if (order.nonce != current.nonce) current = order;
        if (current.times > 0 && strcmp(call, current.call) == 0 && ends_with(path, current.name) &&
            (current.last_max < 0 || (long) last <= current.last_max)) {
            current.times--;
            due = 1;
            struck |= strcmp(current.action, "slow") != 0;
            *out = current;
        }
    }
    if (struck && (due || is_data(path))) tell(due ? "fault" : "ok", call, path);
    pthread_mutex_unlock(&mutex);
    return due;
}

static void wait_ms(long ms) {
    struct timespec left = {ms / 1000, ms % 1000 * 1000000L};
    while (nanosleep(&left, &left) && errno == EINTR) {}
}

/* ---- what a power cut takes back */

static int undo_file(const char *path, int flags) {
    const char *directory = getenv("DISK_UNDO");
    char name[512];
    if (!directory || !is_data(path)) return -1;
    snprintf(name, sizeof name, "%s/%s", directory, strrchr(path, '/') + 1);
    return open(name, flags | O_CLOEXEC, 0600);
}

static void keep(int file, const char *path, off_t offset, size_t length) {
    struct { int64_t offset, length, held, size; } head;
    struct stat found;
    int undo = undo_file(path, O_WRONLY | O_CREAT | O_APPEND);
    if (undo < 0) return;
    char *record = malloc(sizeof head + length);
    ssize_t held = pread(file, record + sizeof head, length, offset);
    fstat(file, &found);
    head.offset = offset;
    head.length = length;
    head.held = held < 0 ? 0 : held;
    head.size = found.st_size;
    memcpy(record, &head, sizeof head);
    size_t size = sizeof head + head.held;
    if (write(undo, record, size) != (ssize_t) size) abort();
    free(record);
    close(undo);
}

static void forget(const char *path) {
    int undo = undo_file(path, O_WRONLY | O_TRUNC);
    if (undo >= 0) close(undo);
}

/* ---- the calls */

static int synced(int file, long number) {
    char path[512];
    struct order order;
    if (!name_of(file, path, sizeof path)) return syscall(number, file);
    if (ordered("sync", path, file < FILES ? last_write[file] : 0, &order)) {
        if (order.action[0] == 's' && order.action[1] != 'h') {
            wait_ms(order.ms);
        } else {
            errno = strcmp(order.action, "enospc") == 0 ? ENOSPC : EIO;
            return -1;
        }
    }
    int result = syscall(number, file);
    if (result == 0) forget(path);
    return result;
}

int fsync(int file) { return synced(file, SYS_fsync); }

int fdatasync(int file) { return synced(file, SYS_fdatasync); }

ssize_t pwrite64(int file, const void *data, size_t length, off64_t offset) {
    char path[512];
    struct order order;
    if (!name_of(file, path, sizeof path)) return syscall(SYS_pwrite64, file, data, length, offset);
    keep(file, path, offset, length);
    if (file < FILES) last_write[file] = length;
    if (ordered("write", path, length, &order)) {
        if (order.action[0] == 's' && order.action[1] != 'h') {
            wait_ms(order.ms);
        } else if (strcmp(order.action, "short") == 0) {
            if (length > 1) length /= 2;
        } else {
            errno = strcmp(order.action, "enospc") == 0 ? ENOSPC : EIO;
            return -1;
        }
    }
    return syscall(SYS_pwrite64, file, data, length, offset);
}

ssize_t pwrite(int file, const void *data, size_t length, off_t offset) { return pwrite64(file, data, length, offset); }
