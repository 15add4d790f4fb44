/*
 * An extension module whose constructor uses the GPU: it launches, waits and copies while the loader's lock is held. Threads
 * that other libraries start meanwhile cannot use the loader.
 */
#include "shape.h"

void extension_spin(uint64_t ns, hipStream_t stream);

static int loaded;

__attribute__((constructor)) static void initialize(void) {
    hipStream_t stream = c10_stream_from_pool(0);
    void *table = c10_allocate(4096, stream);
    unsigned char host[4096] = {0};
    for (int n = 0; n < 200; n++) extension_spin(20000, stream);
    MUST(hipMemsetAsync(table, 7, sizeof host, stream));
    MUST(hipMemcpyAsync(host, table, sizeof host, hipMemcpyDeviceToHost, stream));
    MUST(hipStreamSynchronize(stream));
    extension_spin(20000, NULL);
    MUST(hipDeviceSynchronize());
    c10_free(table);
    loaded = host[4095] == 7;
}

int extension_loaded(void) { return loaded; }
