/* Reaches the driver as the CUDA runtime does: opens it, finds its look-up function by dlsym, asks that for the rest. */
#include <dlfcn.h>
#include <stdio.h>

typedef int (*Look)(const char *, void **, int, unsigned long long, int *);
typedef int (*Launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
typedef int (*OnStream)(void *);

static void *ask(Look look, const char *name, unsigned long long flags) {
    void *found = NULL;
    int status = -1;
    if (look(name, &found, 13000, flags, &status) != 0) return NULL;
    return found;
}

int main(int argc, char **argv) {
    void *driver = dlopen(argc > 1 ? argv[1] : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 70;
    }
    Look first = (Look)dlsym(driver, "cuGetProcAddress_v2");
    Look look = (Look)ask(first, "cuGetProcAddress", 0);
    Launch launch = (Launch)ask(look, "cuLaunchKernel", 0), per_thread = (Launch)ask(look, "cuLaunchKernel", 2);
    int (*launch_graph)(void *, void *) = (int (*)(void *, void *))ask(look, "cuGraphLaunch", 0);
    int (*begin)(void *, int) = (int (*)(void *, int))ask(look, "cuStreamBeginCapture", 0);
    int (*end)(void *, void **) = (int (*)(void *, void **))ask(look, "cuStreamEndCapture", 0);
    OnStream synchronize = (OnStream)ask(look, "cuStreamSynchronize", 0);
    void (*counts)(int *) = (void (*)(int *))dlsym(driver, "driver_counts");
    void *stream = &stream, *parameters[1] = {NULL}, *graph = NULL;
    int failures = ask(look, "cuNoSuchFunction", 0) != NULL, counted[3];
    for (int n = 0; n < 100; n++) {
        failures += launch(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
        failures += launch(NULL, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
        failures += per_thread(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
    }
    failures += begin(stream, 0);
    failures += launch(NULL, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
    failures += end(stream, &graph);
    failures += launch_graph(graph, stream) + synchronize(stream) + synchronize(NULL);
    counts(counted);
    printf("%d failures, %d launched, %d graphs, %d captured\n", failures, counted[0], counted[1], counted[2]);
    fflush(stdout);
    getchar();
    failures = launch(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
    counts(counted);
    printf("%d failures, %d launched\n", failures, counted[0]);
    return 0;
}
