/*
 * Runs a program and sends it a signal at one of its steps. A step is a point just before a system call of one kind by one kind
 * of thread, such as "link sendmsg join". The kernel reports the calls (seccomp user notification), so the program and the library
 * in it are unchanged, and the thread waits in the call until the signal was sent.
 *
 *   steps REPORT SIGNAL STEP COUNT COMMAND...
 *
 * REPORT is a descriptor that gets one line for each event: "pid PID"; "at STEP" when the step was reached for the COUNTth time and
 * SIGNAL was sent; at the end "passed COUNT STEP" for every step and "exit STATUS" with the status that wait returns. With SIGNAL 0
 * nothing is sent.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_STEPS 512
#define FUTEX_PRIVATE 128

struct call { int number; const char *name; };
#define CALL(name) {SYS_##name, #name}
static const struct call CALLS[] = {
    CALL(socket), CALL(connect), CALL(sendmsg), CALL(sendto), CALL(recvmsg), CALL(ppoll), CALL(clone), CALL(clone3),
    CALL(clock_nanosleep), CALL(sched_setscheduler), CALL(sched_setattr), CALL(exit_group), CALL(accept4), CALL(epoll_pwait),
    CALL(epoll_ctl), CALL(pidfd_open), CALL(memfd_create), CALL(bind), CALL(listen), CALL(shutdown), CALL(flock), CALL(unlinkat),
    CALL(timerfd_settime), CALL(setsockopt), CALL(eventfd2), CALL(munmap),
#ifdef SYS_poll
    CALL(poll),
#endif
#ifdef SYS_epoll_wait
    CALL(epoll_wait),
#endif
#ifdef SYS_unlink
    CALL(unlink),
#endif
    /* Only with the arguments that the filter selects: shared mappings, and words in shared memory. */
    CALL(mmap), CALL(futex),
};
#define CALL_COUNT (sizeof CALLS / sizeof *CALLS)

static struct { char name[96]; unsigned long passed; } steps[MAX_STEPS];
static size_t step_count;

static void fail(const char *what) {
    fprintf(stderr, "steps: cannot %s: %s\n", what, strerror(errno));
    exit(125);
}

static int install_filter(void) {
    struct sock_filter filter[2 * CALL_COUNT + 32];
    size_t n = 0;
#define ADD(...) filter[n++] = (struct sock_filter)__VA_ARGS__
#define NUMBER_AT offsetof(struct seccomp_data, nr)
    /* The low half of an argument: this runs on little-endian machines only. */
#define ARGUMENT_AT(k) (offsetof(struct seccomp_data, args) + 8 * (k))
    ADD(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, NUMBER_AT));
    ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 3));
    ADD(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, ARGUMENT_AT(3)));
    ADD(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, MAP_SHARED, 0, 1));
    ADD(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF));
    ADD(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, NUMBER_AT));
    ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex, 0, 3));
    ADD(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, ARGUMENT_AT(1)));
    ADD(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, FUTEX_PRIVATE, 1, 0));
    ADD(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF));
    ADD(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, NUMBER_AT));
    for (size_t k = 0; k < CALL_COUNT; k++) {
        if (CALLS[k].number == SYS_mmap || CALLS[k].number == SYS_futex) continue;
        ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)CALLS[k].number, 0, 1));
        ADD(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF));
    }
    ADD(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    struct sock_fprog program = {.len = (unsigned short)n, .filter = filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -1;
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
}

/* The kind of a thread: "main", the library's threads without prefix and number, "other" for threads of the driver. */
static void role(pid_t process, pid_t thread, char *text, size_t size) {
    char path[64], name[32] = "";
    if (thread == process) {
        snprintf(text, size, "main");
        return;
    }
    snprintf(path, sizeof path, "/proc/%d/comm", thread);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file >= 0 ? read(file, name, sizeof name - 1) : 0;
    if (file >= 0) close(file);
    if (length <= 0 || strncmp(name, "xsched-", 7) != 0) {
        snprintf(text, size, "other");
        return;
    }
    name[length] = 0;
    name[strcspn(name, "\n")] = 0;
    char *end = name + 7 + strcspn(name + 7, "-0123456789");
    *end = 0;
    snprintf(text, size, "%s", name + 7);
}

static int belongs_to(pid_t process, pid_t thread) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task/%d", process, thread);
    return access(path, F_OK) == 0;
}

/* What the message says that a call sends: the name of the request or reply. */
static void message(pid_t thread, const struct seccomp_data *data, char *text, size_t size) {
    char bytes[64] = "";
    struct msghdr header;
    struct iovec part, local = {&header, sizeof header};
    *text = 0;
    if (process_vm_readv(thread, &local, 1, &(struct iovec){(void *)(uintptr_t)data->args[1], sizeof header}, 1, 0) < 0) return;
    local = (struct iovec){&part, sizeof part};
    if (process_vm_readv(thread, &local, 1, &(struct iovec){header.msg_iov, sizeof part}, 1, 0) < 0) return;
    local = (struct iovec){bytes, part.iov_len < sizeof bytes - 1 ? part.iov_len : sizeof bytes - 1};
    if (process_vm_readv(thread, &local, 1, &(struct iovec){part.iov_base, local.iov_len}, 1, 0) < 0) return;
    char *name = strstr(bytes, "\"request\":\"");
    name = name != NULL ? name + 11 : strstr(bytes, "\"reply\":\"") != NULL ? strstr(bytes, "\"reply\":\"") + 9 : NULL;
    if (name != NULL) snprintf(text, size, " %.*s", (int)strcspn(name, "\""), name);
}

static void describe(pid_t process, const struct seccomp_notif *notification, char *text, size_t size) {
    const struct seccomp_data *data = &notification->data;
    const char *call = "?", *detail = "";
    char thread[32], sent[48] = "";
    for (size_t k = 0; k < CALL_COUNT; k++) {
        if (CALLS[k].number == data->nr) call = CALLS[k].name;
    }
    if (data->nr == SYS_futex) detail = (data->args[1] & 127) == 1 || (data->args[1] & 127) == 10 ? " wake" : " wait";
    if (data->nr == SYS_sendmsg) message((pid_t)notification->pid, data, sent, sizeof sent);
    role(process, (pid_t)notification->pid, thread, sizeof thread);
    snprintf(text, size, "%s %s%s%s", thread, call, detail, sent);
}

static unsigned long passed(const char *name) {
    size_t k = 0;
    while (k < step_count && strcmp(steps[k].name, name) != 0) k++;
    if (k == MAX_STEPS) return 0;
    if (k == step_count) snprintf(steps[step_count++].name, sizeof steps[k].name, "%s", name);
    return ++steps[k].passed;
}

int main(int argc, char **argv) {
    if (argc < 6) return 64;
    int report = atoi(argv[1]), signal_number = atoi(argv[2]);
    const char *step = argv[3];
    unsigned long count = strtoul(argv[4], NULL, 10);
    volatile int *listener_at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (listener_at == MAP_FAILED) fail("map memory");
    *listener_at = -1;
    fcntl(report, F_SETFD, FD_CLOEXEC);
    /* Both processes use one table of descriptors until exec: so the listener that the child creates is open here too. */
    pid_t process = (pid_t)syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
    if (process < 0) fail("start a process");
    if (process == 0) {
        int listener = install_filter();
        *listener_at = listener < 0 ? -2 - errno : listener;
        if (listener < 0) _exit(125);
        execvp(argv[5], argv + 5);
        _exit(127);
    }
    /* Closed here, the input of the program ends when the user of this program closes it. */
    while (*listener_at == -1) usleep(100);
    int listener = *listener_at;
    if (listener < 0) {
        errno = -2 - listener;
        fail("install a filter of system calls");
    }
    dprintf(report, "pid %d\n", process);
    struct seccomp_notif notification;
    struct seccomp_notif_resp reply;
    int status = 0, has_exited = 0;
    while (!has_exited) {
        struct pollfd ready = {.fd = listener, .events = POLLIN};
        poll(&ready, 1, 20);
        has_exited = waitpid(process, &status, WNOHANG) == process;
        if (!(ready.revents & POLLIN)) continue;
        memset(&notification, 0, sizeof notification);
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &notification) != 0) continue;
        if (!has_exited && belongs_to(process, (pid_t)notification.pid)) {
            char name[96];
            describe(process, &notification, name, sizeof name);
            if (passed(name) == count && strcmp(name, step) == 0 && signal_number != 0) {
                kill(process, signal_number);
                dprintf(report, "at %s\n", name);
            }
        }
        memset(&reply, 0, sizeof reply);
        reply.id = notification.id;
        reply.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
        /* Fails if the signal has ended or interrupted the call. */
        ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &reply);
    }
    for (size_t k = 0; k < step_count; k++) dprintf(report, "passed %lu %s\n", steps[k].passed, steps[k].name);
    dprintf(report, "exit %d\n", status);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
