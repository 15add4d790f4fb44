/* Uses the device through a library that it opens with dlopen, as plug-ins do. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

int main(int argc, char **argv) {
    void *library = dlopen(argc > 1 ? argv[1] : "libxsim.so", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 70;
    }
    int (*open_device)(const char *, void **) = (int (*)(const char *, void **))dlsym(library, "xsim_open");
    int (*create)(void *, void **) = (int (*)(void *, void **))dlsym(library, "xsim_queue_create");
    int (*launch)(void *, uint64_t) = (int (*)(void *, uint64_t))dlsym(library, "xsim_launch");
    int (*synchronize)(void *) = (int (*)(void *))dlsym(library, "xsim_synchronize");
    void *device, *queue;
    printf("%d", open_device(NULL, &device));
    printf(" %d", create(device, &queue));
    for (int n = 0; n < 10; n++) printf(" %d", launch(queue, 100000));
    printf(" %d\n", synchronize(queue));
    fflush(stdout);
    /* Waits for a line of input, so that the test can inspect the program. */
    getchar();
    return 4;
}
