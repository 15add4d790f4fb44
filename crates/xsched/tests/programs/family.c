/*
 * Programs with several processes, or with an unusual exit.
 *
 *   family servers N        uses the device, then forks N children that use it too
 *   family inherit          launches on the parent's queue in a child, which the device rejects, then uses its own
 *   family keeps-child      has a queue, and a child with a queue; both wait for a line of input
 *   family daemon           forks twice; the grandchild uses the device
 *   family chain N          uses the device, then replaces itself with itself and N - 1
 *   family closer           closes every descriptor, and counts what arrives on the descriptors that it opens then
 *   family late             launches in an exit handler that it registered before it used the device
 */
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "device.h"

static xsim_device_t device;
static xsim_queue_t queue;

static int wait_for(pid_t child) {
    int status;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 80;
}

static int servers(int count) {
    use_device("parent", 5, 100);
    must(xsim_open(NULL, &device), "open");
    must(xsim_queue_create(device, &queue), "create");
    must(xsim_launch(queue, 1000), "launch");
    int failed = 0;
    for (int n = 0; n < count; n++) {
        pid_t child = fork();
        if (child == 0) {
            use_device("child", 5, 100);
            exit(0);
        }
        failed |= wait_for(child);
    }
    must(xsim_launch(queue, 1000), "launch after fork");
    must(xsim_synchronize(queue), "synchronize after fork");
    use_device("parent again", 5, 100);
    return failed;
}

static int inherit(void) {
    must(xsim_open(NULL, &device), "open");
    must(xsim_queue_create(device, &queue), "create");
    must(xsim_launch(queue, 1000), "launch");
    pid_t child = fork();
    if (child == 0) {
        printf("child on its parent's queue: %d %d\n", xsim_launch(queue, 1000), xsim_synchronize(queue));
        use_device("child", 5, 100);
        exit(0);
    }
    int failed = wait_for(child);
    must(xsim_synchronize(queue), "synchronize");
    return failed;
}

static int keeps_child(void) {
    must(xsim_open(NULL, &device), "open");
    must(xsim_queue_create(device, &queue), "create");
    must(xsim_launch(queue, 1000), "launch");
    int line[2];
    char byte;
    if (pipe(line) != 0) return 84;
    pid_t child = fork();
    if (child == 0) {
        xsim_device_t own_device;
        xsim_queue_t own_queue;
        close(line[1]);
        must(xsim_open(NULL, &own_device), "open in the child");
        must(xsim_queue_create(own_device, &own_queue), "create in the child");
        must(xsim_launch(own_queue, 1000), "launch in the child");
        must(xsim_synchronize(own_queue), "synchronize in the child");
        printf("ready\n");
        fflush(stdout);
        /* Exits when the parent exits. */
        exit(read(line[0], &byte, 1) != 0);
    }
    close(line[0]);
    getchar();
    must(xsim_launch(queue, 1000), "launch beside the child");
    must(xsim_synchronize(queue), "synchronize");
    close(line[1]);
    return wait_for(child);
}

static int daemon_of_daemon(void) {
    int done[2];
    char byte;
    if (pipe(done) != 0) return 81;
    use_device("parent", 5, 100);
    pid_t child = fork();
    if (child == 0) {
        setsid();
        if (fork() == 0) {
            use_device("grandchild", 5, 100);
            if (write(done[1], "x", 1) != 1) exit(82);
            exit(0);
        }
        exit(0);
    }
    close(done[1]);
    int failed = wait_for(child);
    return failed | (read(done[0], &byte, 1) != 1);
}

static int chain(char *self, int left) {
    char number[16];
    use_device("link", 5, 100);
    if (left == 0) return 7;
    snprintf(number, sizeof number, "%d", left - 1);
    execl("/proc/self/exe", self, "chain", number, (char *)NULL);
    return 83;
}

static int closer(void) {
    int pairs[16][2], received = 0;
    char byte;
    must(xsim_open(NULL, &device), "open");
    must(xsim_queue_create(device, &queue), "create");
    for (int fd = 3; fd < 64; fd++) close(fd);
    for (int n = 0; n < 16; n++) {
        if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pairs[n]) != 0) return 85;
    }
    for (int n = 0; n < 20; n++) {
        must(xsim_launch(queue, 1000000), "launch");
        must(xsim_synchronize(queue), "synchronize");
    }
    for (int n = 0; n < 16; n++) {
        for (int end = 0; end < 2; end++) received += recv(pairs[n][end], &byte, 1, MSG_DONTWAIT) >= 0;
    }
    printf("received %d\n", received);
    return received;
}

static void launch_late(void) {
    must(xsim_launch(queue, 1000), "launch late");
    must(xsim_synchronize(queue), "synchronize late");
    printf("late\n");
}

static int late(void) {
    atexit(launch_late);
    must(xsim_open(NULL, &device), "open");
    must(xsim_queue_create(device, &queue), "create");
    printf("begun\n");
    fflush(stdout);
    /* The test can hold the program here, and lets it exit with a line of input. */
    getchar();
    return 5;
}

int main(int argc, char **argv) {
    int number = argc > 2 ? atoi(argv[2]) : 0;
    if (argc < 2) return 64;
    if (strcmp(argv[1], "servers") == 0) return servers(number);
    if (strcmp(argv[1], "inherit") == 0) return inherit();
    if (strcmp(argv[1], "keeps-child") == 0) return keeps_child();
    if (strcmp(argv[1], "daemon") == 0) return daemon_of_daemon();
    if (strcmp(argv[1], "chain") == 0) return chain(argv[0], number);
    if (strcmp(argv[1], "closer") == 0) return closer();
    if (strcmp(argv[1], "late") == 0) return late();
    return 64;
}
