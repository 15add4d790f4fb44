/*
 * AMD's real libraries: creates a handle of each and, with rocBLAS, a matrix product, and prints the result of each call.
 * Each library is opened with RTLD_LOCAL, as Python opens its modules.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include "hip.h"

static void *find(const char *library, const char *name) {
    void *opened = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    void *found = opened ? dlsym(opened, name) : NULL;
    if (found == NULL) {
        printf("%s\n", dlerror());
        exit(70);
    }
    return found;
}

typedef int (*Create)(void **);
typedef int (*Product)(void *, int, int, int, int, int, const float *, const float *, int, const float *, int, const float *, float *, int);

enum { SIZE = 64, NOT_TRANSPOSED = 111 };

int main(void) {
    void *handle = NULL;
    float *a, *b, *c, one = 1, zero = 0;
    size_t bytes = SIZE * SIZE * sizeof(float);
    printf("memory %d\n", hipMalloc((void **)&a, bytes) | hipMalloc((void **)&b, bytes) | hipMalloc((void **)&c, bytes));
    printf("rocblas_create_handle %d\n", ((Create)find("librocblas.so.4", "rocblas_create_handle"))(&handle));
    Product product = (Product)find("librocblas.so.4", "rocblas_sgemm");
    printf("rocblas_sgemm %d\n", product(handle, NOT_TRANSPOSED, NOT_TRANSPOSED, SIZE, SIZE, SIZE, &one, a, SIZE, b, SIZE, &zero, c, SIZE));
    printf("wait %d, last error %d\n", hipDeviceSynchronize(), hipGetLastError());
    printf("hipblasLtCreate %d\n", ((Create)find("libhipblaslt.so.1", "hipblasLtCreate"))(&handle));
    printf("miopenCreate %d\n", ((Create)find("libMIOpen.so.1", "miopenCreate"))(&handle));
    printf("last error %d\n", hipGetLastError());
    return 0;
}
