/*
 * Looks up functions by name and version. Prints the file and the offset of each.
 *
 *   versions LIBRARY
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const char *file_of(void *found, unsigned long *offset) {
    Dl_info info;
    if (dladdr(found, &info) == 0) return "?";
    *offset = (unsigned long)((char *)found - (char *)info.dli_fbase);
    const char *name = strrchr(info.dli_fname, '/');
    return name == NULL ? info.dli_fname : name + 1;
}

static void print_result(const char *how, const char *name, const char *version, void *found) {
    unsigned long offset = 0;
    const char *error = found == NULL ? dlerror() : NULL;
    const char *file = found == NULL ? "none" : file_of(found, &offset);
    printf("%s %s %s: %s %#lx%s%s\n", how, name, version, file, offset, error == NULL ? "" : " ", error == NULL ? "" : error);
}

int main(int argc, char **argv) {
    if (argc < 2) return 64;
    static const char *const of_libc[][2] = {{"memcpy", "GLIBC_2.2.5"}, {"memcpy", "GLIBC_2.14"}, {"realpath", "GLIBC_2.2.5"},
        {"realpath", "GLIBC_2.3"}, {"dlsym", "GLIBC_2.2.5"}, {"dlvsym", "GLIBC_2.2.5"}, {"puts", "GLIBC_2.99"}, {"nothing", "GLIBC_2.2.5"}};
    void *driver = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL), *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
    if (driver == NULL || libc == NULL) return 70;
    void *(*next_of)(const char *, const char *) = (void *(*)(const char *, const char *))dlsym(driver, "next_of");
    for (unsigned n = 0; n < sizeof of_libc / sizeof *of_libc; n++) {
        const char *name = of_libc[n][0], *version = of_libc[n][1];
        print_result("handle", name, version, dlvsym(libc, name, version));
        print_result("next", name, version, dlvsym(RTLD_NEXT, name, version));
        print_result("of a library", name, version, next_of(name, version));
        if (n < 4) print_result("default", name, version, dlvsym(RTLD_DEFAULT, name, version));
    }
    int (*second)(void) = (int (*)(void))dlvsym(driver, "cuLaunchKernel", "DRIVER_2");
    int (*first)(void) = (int (*)(void))dlvsym(driver, "cuLaunchKernel", "DRIVER_1");
    int (*synchronize)(void *) = (int (*)(void *))dlvsym(driver, "cuStreamSynchronize", "DRIVER_2");
    print_result("handle", "cuLaunchKernel", "DRIVER_3", dlvsym(driver, "cuLaunchKernel", "DRIVER_3"));
    printf("%d %d %d\n", first(), second(), synchronize(NULL));
    unsigned long offset;
    printf("%s %s %s\n", file_of((void *)first, &offset), file_of((void *)second, &offset), file_of((void *)synchronize, &offset));
    return 0;
}
