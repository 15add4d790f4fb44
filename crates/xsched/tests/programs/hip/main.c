/* Runs the linked consumer, or the libraries in OPEN, opened with RTLD_LOCAL as Python opens its modules. */
#ifdef OPEN
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv) {
    static const char *const FILES[] = {OPEN};
    int status = 0;
    for (unsigned n = 0; n < sizeof FILES / sizeof *FILES; n++) {
        void *consumer = dlopen(FILES[n], RTLD_NOW | RTLD_LOCAL);
        int (*run)(int, char **) = consumer ? (int (*)(int, char **))dlsym(consumer, "run") : NULL;
        if (run == NULL) {
            fprintf(stderr, "%s\n", dlerror());
            return 70;
        }
        status |= run(argc, argv);
    }
    return status;
}
#else
int run(int argc, char **argv);

int main(int argc, char **argv) { return run(argc, argv); }
#endif
