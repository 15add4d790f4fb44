/*
 * Prints the number of threads and descriptors of its own process at the start and, with `use`, with a queue. Then counts
 * signals until a line of input, and prints how many of them were handled on a thread other than the first.
 *
 *   guest [use]
 */
#include <dirent.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "device.h"

static atomic_int taken, handled_on_other_thread;

static void on_signal(int number) {
    (void)number;
    taken++;
    if (syscall(SYS_gettid) != getpid()) handled_on_other_thread++;
}

static int count(const char *directory) {
    DIR *entries = opendir(directory);
    int n = 0;
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;) n += entry->d_name[0] != '.';
    closedir(entries);
    return n;
}

static void look(const char *when) {
    printf("%s: %d threads, %d descriptors\n", when, count("/proc/self/task"), count("/proc/self/fd"));
    fflush(stdout);
}

int main(int argc, char **argv) {
    xsim_device_t device;
    xsim_queue_t queue;
    (void)argv;
    look("start");
    if (argc > 1) {
        must(xsim_open(NULL, &device), "open");
        look("device");
        must(xsim_queue_create(device, &queue), "create");
        must(xsim_launch(queue, 1000), "launch");
        look("queue");
    }
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    printf("ready\n");
    fflush(stdout);
    getchar();
    printf("signals: %s, other threads %d\n", taken > 0 ? "some" : "none", handled_on_other_thread);
    return 0;
}
