/* A driver library with the names of NVIDIA's, as far as the hooks meet them: launches are done when they return. */
#include <stddef.h>
#include <string.h>

typedef int Code;
static int launches, graphs, captured, capturing;
static char context;

Code cuCtxGetCurrent(void **current) { *current = &context; return 0; }
Code cuCtxPushCurrent_v2(void *pushed) { return pushed == &context ? 0 : 201; }
Code cuCtxPopCurrent_v2(void **popped) { *popped = &context; return 0; }
Code cuCtxGetDevice(int *device) { *device = 0; return 0; }
Code cuDeviceGetAttribute(int *value, int which, int device) {
    /* PCI bus, device and domain: 0000:00:06.0. */
    *value = which == 34 ? 6 : 0;
    return device == 0 ? 0 : 101;
}
Code cuEventCreate(void **event, unsigned flags) { static char events[4096]; static int next; (void)flags; *event = &events[next++ % 4096]; return 0; }
Code cuEventRecord(void *event, void *stream) { (void)event; (void)stream; return capturing ? 900 : 0; }
Code cuEventQuery(void *event) { (void)event; return 0; }
Code cuStreamSynchronize(void *stream) { (void)stream; return 0; }
Code cuStreamIsCapturing(void *stream, int *status) { (void)stream; *status = capturing; return 0; }
Code cuStreamBeginCapture_v2(void *stream, int mode) { (void)stream; (void)mode; capturing = 1; return 0; }
Code cuStreamEndCapture(void *stream, void **graph) { (void)stream; *graph = &context; capturing = 0; return 0; }
Code cuStreamDestroy_v2(void *stream) { (void)stream; return 0; }

Code cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                    unsigned shared, void *stream, void **parameters, void **extra) {
    (void)f; (void)gx; (void)gy; (void)gz; (void)bx; (void)by; (void)bz; (void)shared; (void)stream; (void)extra;
    /* What comes last must come through too. */
    if (parameters == NULL) return 1;
    if (capturing) captured++; else launches++;
    return 0;
}
Code cuLaunchKernel_ptsz(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                         unsigned shared, void *stream, void **parameters, void **extra) {
    return cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra);
}
Code cuGraphLaunch(void *graph, void *stream) { (void)graph; (void)stream; graphs++; return 0; }

Code cuGetProcAddress_v2(const char *symbol, void **found, int version, unsigned long long flags, int *status);

static const struct { const char *name; void *plain, *per_thread; } TABLE[] = {
    {"cuLaunchKernel", cuLaunchKernel, cuLaunchKernel_ptsz},
    {"cuGraphLaunch", cuGraphLaunch, cuGraphLaunch},
    {"cuStreamSynchronize", cuStreamSynchronize, cuStreamSynchronize},
    {"cuStreamBeginCapture", cuStreamBeginCapture_v2, cuStreamBeginCapture_v2},
    {"cuStreamEndCapture", cuStreamEndCapture, cuStreamEndCapture},
    {"cuGetProcAddress", cuGetProcAddress_v2, cuGetProcAddress_v2},
};

Code cuGetProcAddress_v2(const char *symbol, void **found, int version, unsigned long long flags, int *status) {
    (void)version;
    for (size_t n = 0; n < sizeof TABLE / sizeof *TABLE; n++) {
        if (strcmp(symbol, TABLE[n].name) == 0) {
            *found = flags & 2 ? TABLE[n].per_thread : TABLE[n].plain;
            if (status != NULL) *status = 0;
            return 0;
        }
    }
    *found = NULL;
    if (status != NULL) *status = 1;
    return 0;
}

void driver_counts(int *counts) { counts[0] = launches; counts[1] = graphs; counts[2] = captured; }
