/* Asks in all libraries whether a vendor's functions are there, before its library is and with it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

static const char *NAMES[] = {"cuLaunchKernel", "hipLaunchKernel", "clFinish", "clEnqueueCommandBufferKHR", "xsim_launch", "puts"};

static void ask(void) {
    for (unsigned n = 0; n < sizeof NAMES / sizeof *NAMES; n++) {
        dlerror();
        int everywhere = dlsym(RTLD_DEFAULT, NAMES[n]) != NULL;
        int complaint = dlerror() != NULL;
        printf("%s: %d %d %d\n", NAMES[n], everywhere, complaint, dlsym(RTLD_NEXT, NAMES[n]) != NULL);
    }
}

int main(int argc, char **argv) {
    ask();
    for (int n = 1; n < argc; n++) printf("opened: %d\n", dlopen(argv[n], RTLD_NOW | RTLD_GLOBAL) != NULL);
    ask();
    return 0;
}
