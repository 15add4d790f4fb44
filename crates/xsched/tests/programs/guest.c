/*
 * Looks at what is in its own process: says how many threads and descriptors there are at the beginning, then, if it
 * is to use the device, with a queue. Then counts signals until a line of input comes, and says how many threads other
 * than the first took one.
 *
 *   guest [use]
 */
#include <dirent.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "device.h"

static atomic_int taken, taken_elsewhere;

static void on_signal(int number) {
    (void)number;
    taken++;
    if (syscall(SYS_gettid) != getpid()) taken_elsewhere++;
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
    printf("signals: %s, elsewhere %d\n", taken > 0 ? "some" : "none", taken_elsewhere);
    return 0;
}
