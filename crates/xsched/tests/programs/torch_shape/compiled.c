/* A kernel that is compiled at run time, found and launched as Inductor and Triton do: every function by hipGetProcAddress. */
#include <dlfcn.h>
#include "shape.h"

typedef hipError_t (*GetProcAddress)(const char *, void **, int, uint64_t, void *);
typedef hipError_t (*LoadData)(hipModule_t *, const void *);
typedef hipError_t (*GetFunction)(hipFunction_t *, hipModule_t, const char *);
typedef hipError_t (*Launch)(hipFunction_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, hipStream_t, void **, void **);

/* The runtime that is already in the process. */
static void *loaded_runtime(void) {
    const char *const names[] = {"libamdhip64.so.7", "libamdhip64.so.6"};
    for (unsigned n = 0; n < 2; n++) {
        void *runtime = dlopen(names[n], RTLD_NOLOAD | RTLD_LAZY | RTLD_LOCAL);
        if (runtime) return runtime;
    }
    return NULL;
}

static void *compile(void) {
#ifndef HIP_SUBSET
    static const char SOURCE[] = "extern \"C\" __global__ void spin_compiled(unsigned long ns) {"
                                 " long long end = wall_clock64() + ns / 10; while (wall_clock64() < end) {} }";
    const char *const options[] = {"--offload-arch=gfx90a"};
    const char *const names[] = {"libhiprtc.so.7", "libhiprtc.so.6"};
    void *compiler = NULL, *program = NULL;
    for (unsigned n = 0; n < 2 && compiler == NULL; n++) {
        /* The compiler of the runtime's own version. */
        char runtime[32];
        snprintf(runtime, sizeof runtime, "libamdhip64%s", names[n] + strlen("libhiprtc"));
        if (dlopen(runtime, RTLD_NOLOAD | RTLD_LAZY)) compiler = dlopen(names[n], RTLD_NOW | RTLD_LOCAL);
    }
    if (compiler == NULL) {
        printf("compiled: no compiler\n");
        return NULL;
    }
    size_t bytes = 0;
    int (*create)(void **, const char *, const char *, int, const char **, const char **) = dlsym(compiler, "hiprtcCreateProgram");
    int (*build)(void *, int, const char *const *) = dlsym(compiler, "hiprtcCompileProgram");
    int (*size)(void *, size_t *) = dlsym(compiler, "hiprtcGetCodeSize");
    int (*code)(void *, char *) = dlsym(compiler, "hiprtcGetCode");
    int error = create(&program, SOURCE, "spin.hip", 0, NULL, NULL);
    if (error == 0) error = build(program, 1, options);
    if (error == 0) error = size(program, &bytes);
    char *out = malloc(bytes + 1);
    if (error == 0) error = code(program, out);
    printf("compiled: %d, %d\n", error, bytes > 0);
    return error ? NULL : out;
#else
    return calloc(1, 64);
#endif
}

void at_compiled_kernels(hipStream_t stream) {
    void *code = compile(), *runtime = loaded_runtime(), *found[3] = {NULL};
    if (code == NULL || runtime == NULL) return;
    GetProcAddress get = (GetProcAddress)dlsym(runtime, "hipGetProcAddress");
    const char *const names[] = {"hipModuleLoadData", "hipModuleGetFunction", "hipModuleLaunchKernel"};
    int status, version = 0;
    MUST(((hipError_t(*)(int *))dlsym(runtime, "hipRuntimeGetVersion"))(&version));
    for (int n = 0; n < 3; n++) MUST(get(names[n], &found[n], version, 0, &status));
    hipModule_t module;
    hipFunction_t function;
    MUST(((LoadData)found[0])(&module, code));
    MUST(((GetFunction)found[1])(&function, module, "spin_compiled"));
    for (int n = 0; n < 10; n++) {
        uint64_t ns = 20000;
        void *arguments[] = {&ns};
        MUST(((Launch)found[2])(function, 1, 1, 1, 64, 1, 1, 0, stream, arguments, NULL));
    }
    MUST(hipStreamSynchronize(stream));
    printf("compiled kernels: 10\n");
    free(code);
}
