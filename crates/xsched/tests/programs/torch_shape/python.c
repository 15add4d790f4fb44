/* Opens libraries as Python does: global dependencies with RTLD_GLOBAL, the module with RTLD_LOCAL. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *open_beside(const char *program, const char *name, int flags) {
    char path[4096];
    const char *slash = strrchr(program, '/');
    snprintf(path, sizeof path, "%.*s%s", slash ? (int)(slash - program) + 1 : 0, program, name);
    void *library = dlopen(path, RTLD_NOW | flags);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(70);
    }
    return library;
}

static void interpreter_finalized(void) {
    printf("finalized\n");
    fflush(stdout);
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    atexit(interpreter_finalized);
    /* Data loaders that touch no GPU do not import the module. */
    if (argc > 1 && strcmp(argv[1], "plain-worker") == 0) return 0;
    open_beside(argv[0], "libtorch_global_deps.so", RTLD_GLOBAL);
    void *module = open_beside(argv[0], "libtorch_python.so", RTLD_LOCAL);
    int (*run)(int, char **) = (int (*)(int, char **))dlsym(module, "PyInit__C");
    return run(argc, argv);
}
