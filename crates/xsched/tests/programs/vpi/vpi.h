/*
 * What the VPI test programs share: the part of VPI that they use, as the vendor's headers declare it.
 *
 * With OPENED, the library is not linked: it is opened with dlopen, and every function is looked up.
 */
#ifndef VPI_PROGRAMS_H
#define VPI_PROGRAMS_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int VPIStatus;
typedef struct VPIContextImpl *VPIContext;
typedef struct VPIStreamImpl *VPIStream;
typedef struct VPIEventImpl *VPIEvent;
typedef struct VPIImageImpl *VPIImage;
typedef struct VPIArrayImpl *VPIArray;
typedef struct VPIPayloadImpl *VPIPayload;
typedef uint64_t VPIImageFormat;
typedef uint64_t VPIPixelType;
typedef enum { VPI_BACKEND_CPU = 1, VPI_BACKEND_CUDA = 2, VPI_BACKEND_PVA = 4, VPI_BACKEND_VIC = 8 } VPIBackend;
typedef enum { VPI_EVENT_STATE_NOT_SIGNALED, VPI_EVENT_STATE_SIGNALED } VPIEventState;
typedef enum { VPI_LOCK_READ = 1, VPI_LOCK_WRITE = 2, VPI_LOCK_READ_WRITE = 3 } VPILockMode;
typedef enum { VPI_IMAGE_BUFFER_INVALID, VPI_IMAGE_BUFFER_HOST_PITCH_LINEAR } VPIImageBufferType;
typedef enum { VPI_BORDER_ZERO, VPI_BORDER_CLAMP } VPIBorderExtension;
typedef enum { VPI_CONVERSION_CLAMP, VPI_CONVERSION_CAST } VPIConversionPolicy;
typedef enum { VPI_INTERP_NEAREST, VPI_INTERP_LINEAR } VPIInterpolationType;
typedef void (*VPIHostFunction)(void *hostData);

typedef struct {
    VPIPixelType pixelType;
    int32_t width, height, pitchBytes;
    void *data;
} VPIImagePlanePitchLinear;

typedef struct {
    VPIImageFormat format;
    int32_t numPlanes;
    VPIImagePlanePitchLinear planes[6];
} VPIImageBufferPitchLinear;

typedef struct {
    VPIImageBufferType bufferType;
    union { VPIImageBufferPitchLinear pitch; } buffer;
} VPIImageData;

typedef struct {
    VPIConversionPolicy policy;
    float scale, offset;
    uint64_t flags;
    VPIInterpolationType chromaUpFilter, chromaDownFilter;
} VPIConvertImageFormatParams;

typedef float VPIDCFTrackerParams;

VPIStatus vpiContextCreate(uint64_t flags, VPIContext *ctx);
void vpiContextDestroy(VPIContext ctx);
VPIStatus vpiContextPush(VPIContext ctx);
VPIStatus vpiContextPop(VPIContext *ctx);
VPIStatus vpiContextGetCurrent(VPIContext *ctx);
VPIStatus vpiStreamCreate(uint64_t flags, VPIStream *stream);
void vpiStreamDestroy(VPIStream stream);
VPIStatus vpiStreamFlush(VPIStream stream);
VPIStatus vpiStreamSync(VPIStream stream);
VPIStatus vpiStreamWaitEvent(VPIStream stream, VPIEvent event);
VPIStatus vpiEventCreate(uint64_t flags, VPIEvent *event);
void vpiEventDestroy(VPIEvent event);
VPIStatus vpiEventRecord(VPIEvent event, VPIStream stream);
VPIStatus vpiEventSync(VPIEvent event);
VPIStatus vpiEventQuery(VPIEvent event, VPIEventState *state);
VPIStatus vpiImageCreate(int32_t width, int32_t height, VPIImageFormat fmt, uint64_t flags, VPIImage *img);
void vpiImageDestroy(VPIImage img);
VPIStatus vpiImageLockData(VPIImage img, VPILockMode mode, VPIImageBufferType bufType, VPIImageData *data);
VPIStatus vpiImageUnlock(VPIImage img);
VPIStatus vpiSubmitHostFunction(VPIStream stream, VPIHostFunction hostFunc, void *hostData);
VPIStatus vpiSubmitConvertImageFormat(VPIStream stream, uint64_t backend, VPIImage input, VPIImage output, const VPIConvertImageFormatParams *params);
VPIStatus vpiSubmitBilateralFilter(VPIStream stream, uint64_t backend, VPIImage input, VPIImage output, int32_t kernelSize, float sigmaIntensity, float sigmaSpace, VPIBorderExtension border);
VPIStatus vpiSubmitGaussianFilter(VPIStream stream, uint64_t backend, VPIImage input, VPIImage output, int32_t kernelSizeX, int32_t kernelSizeY, float sigmaX, float sigmaY, VPIBorderExtension border);
VPIStatus vpiSubmitSeparableConvolution(VPIStream stream, uint64_t backend, VPIImage input, VPIImage output, const float *kernelXData, int32_t kernelXSize, const float *kernelYData, int32_t kernelYSize, VPIBorderExtension border);
VPIStatus vpiSubmitDCFTrackerLocalizeBatch(VPIStream stream, uint64_t backend, VPIPayload payload, const int32_t *enabledSequences, int32_t numSequences, VPIImage featureMaskingWindow, VPIImage inPatches, VPIArray inObjects, VPIArray outObjects, VPIImage outCorrelationResponses, VPIArray outMaxCorrelationResponses, const VPIDCFTrackerParams *params);

#ifdef OPENED
static void *look_up(const char *name) {
    static void *library;
    if (library == NULL) library = dlopen("libnvvpi.so.3", RTLD_NOW | RTLD_LOCAL);
    void *found = library == NULL ? NULL : dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(69);
    }
    return found;
}
/* Each call site looks its function up once. */
#define CALL(name) ({ static __typeof__(&name) found; if (found == NULL) found = (__typeof__(&name))look_up(#name); found; })
#else
#define CALL(name) name
#endif

static inline void must(VPIStatus status, const char *what) {
    if (status != 0) {
        fprintf(stderr, "%s: error %d\n", what, status);
        exit(70);
    }
}

static inline double now_us(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec * 1e6 + (double)at.tv_nsec / 1e3;
}

/* Without a device, prints the error and exits. */
static inline VPIStream new_stream(void) {
    VPIStream stream;
    VPIStatus status = CALL(vpiStreamCreate)(0, &stream);
    if (status != 0) {
        printf("no stream: error %d\n", status);
        exit(3);
    }
    return stream;
}

static inline VPIEvent new_event(void) {
    VPIEvent event;
    must(CALL(vpiEventCreate)(0, &event), "event");
    return event;
}

/* An algorithm on this image runs for `us` microseconds on the stand-in. */
static inline VPIImage new_image(int us) {
    VPIImage image;
    must(CALL(vpiImageCreate)(us, 1, 0, 0, &image), "image");
    return image;
}

/* Whether every pixel has this value. All are 0 afterwards. */
static inline int take(VPIImage image, float expected) {
    VPIImageData data;
    must(CALL(vpiImageLockData)(image, VPI_LOCK_READ_WRITE, VPI_IMAGE_BUFFER_HOST_PITCH_LINEAR, &data), "lock");
    float *pixels = data.buffer.pitch.planes[0].data;
    int is_correct = 1;
    for (int n = 0; n < data.buffer.pitch.planes[0].width; n++) {
        is_correct &= pixels[n] == expected;
        pixels[n] = 0;
    }
    must(CALL(vpiImageUnlock)(image), "unlock");
    return is_correct;
}

/* Adds 1 to every pixel. */
static inline void increment(VPIImage image, uint64_t backend, VPIStream stream) {
    VPIConvertImageFormatParams add = {.policy = VPI_CONVERSION_CLAMP, .scale = 1, .offset = 1};
    must(CALL(vpiSubmitConvertImageFormat)(stream, backend, image, image, &add), "conversion");
}

#endif
