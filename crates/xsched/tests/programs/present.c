/* Looks up a vendor's functions in all libraries, before and after the vendor's library is loaded. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

static const char *NAMES[] = {"cuLaunchKernel", "hipLaunchKernel", "clFinish", "clEnqueueCommandBufferKHR", "xsim_launch", "puts"};

static void look_up(void) {
    for (unsigned n = 0; n < sizeof NAMES / sizeof *NAMES; n++) {
        dlerror();
        int everywhere = dlsym(RTLD_DEFAULT, NAMES[n]) != NULL;
        int has_error = dlerror() != NULL;
        printf("%s: %d %d %d\n", NAMES[n], everywhere, has_error, dlsym(RTLD_NEXT, NAMES[n]) != NULL);
    }
}

int main(int argc, char **argv) {
    look_up();
    for (int n = 1; n < argc; n++) printf("opened: %d\n", dlopen(argv[n], RTLD_NOW | RTLD_GLOBAL) != NULL);
    look_up();
    return 0;
}
