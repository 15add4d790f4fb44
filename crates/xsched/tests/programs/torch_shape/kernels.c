/* The same as kernels.hip, without AMD's compiler: what its output does, by hand. */
#include "shape.h"

#define TEXT2(a) #a
#define TEXT(a) TEXT2(a)
#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)
#define KERNEL JOIN(spin_, UNIT)

struct fat_binary { uint32_t magic, version; const void *binary; void *unused; };
void **__hipRegisterFatBinary(const void *);
void __hipUnregisterFatBinary(void **);
void __hipRegisterFunction(void **, const void *, const char *, const char *, unsigned, void *, void *, void *, void *, int *);
void __hipRegisterManagedVar(void **, void **, void *, const char *, size_t, unsigned);
hipError_t __hipPushCallConfiguration(dim3, dim3, size_t, hipStream_t);
hipError_t __hipPopCallConfiguration(dim3 *, dim3 *, size_t *, hipStream_t *);

static const char CODE[64] = "__CLANG_OFFLOAD_BUNDLE__";
static const struct fat_binary BINARY __attribute__((section(".hipFatBinSegment"))) = {0x48495046, 1, CODE, NULL};
static void **registered;

/* The host's function of the kernel, by whose address the runtime knows it. */
static void KERNEL(uint64_t ns) {
    dim3 grid, block;
    size_t shared;
    hipStream_t stream;
    void *arguments[] = {&ns};
    MUST(__hipPopCallConfiguration(&grid, &block, &shared, &stream));
    hipLaunchKernel((const void *)KERNEL, grid, block, arguments, shared, stream);
}

static void unregister_binary(void) {
    if (registered) __hipUnregisterFatBinary(registered);
    registered = NULL;
}

#ifdef WITH_MANAGED
static int initial_value = 42, *managed = &initial_value;
int JOIN(UNIT, _managed_value)(void) { return *managed; }
#endif

__attribute__((constructor)) static void register_binary(void) {
    registered = __hipRegisterFatBinary(&BINARY);
    __hipRegisterFunction(registered, (const void *)KERNEL, TEXT(KERNEL), TEXT(KERNEL), -1u, NULL, NULL, NULL, NULL, NULL);
#ifdef WITH_MANAGED
    __hipRegisterManagedVar(registered, (void **)&managed, &initial_value, "managed", sizeof initial_value, 4);
#endif
    atexit(unregister_binary);
}

void JOIN(UNIT, _spin)(uint64_t ns, hipStream_t stream) {
    const dim3 grid = {1, 1, 1}, block = {64, 1, 1};
    MUST(__hipPushCallConfiguration(grid, block, 0, stream));
    KERNEL(ns);
    MUST(hipGetLastError());
}

void JOIN(UNIT, _spin_per_thread)(uint64_t ns) {
    const dim3 grid = {1, 1, 1}, block = {64, 1, 1};
    void *arguments[] = {&ns};
    MUST(hipLaunchKernel_spt((const void *)KERNEL, grid, block, arguments, 0, NULL));
}
