/* A process that uses the driver and forks: the child cannot use the driver, the parent can. A child forked before can. */
#include <sys/wait.h>
#include <unistd.h>
#include "gpu.h"

static int child(void (*work)(void)) {
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        work();
        _exit(0);
    }
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}

static void use(void) {
    open_gpu();
    MUST(spin(NULL, 1000000));
    MUST(cuCtxSynchronize());
}

static void cannot(void) {
    EXPECT_RESULT(3, spin(NULL, 1000000));
    EXPECT_RESULT(3, cuStreamSynchronize(NULL));
    EXPECT_RESULT(3, cuInit(0));
}

int main(void) {
    EXPECT(child(use) == 0);
    use();
    EXPECT(child(cannot) == 0);
    MUST(spin(NULL, 1000000));
    MUST(cuStreamSynchronize(NULL));
    puts("done");
    return 0;
}
