/*
 * An OpenCL driver for the loader: PoCL, which calls its processor a GPU and says where on the PCI bus it is, the way that is
 * named in ON_A_BUS: khronos, nvidia, amd, or nowhere.
 */
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <CL/cl_ext.h>
#include <CL/cl_icd.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The address that the stand-in for NVIDIA's driver has: 0000:00:06.0. */
enum { BUS = 0, SLOT = 6 };

typedef void *(*Look)(const char *);
static cl_api_clGetDeviceInfo real_info;

/* What a device is asked, what it answers, and for which ways that are named in ON_A_BUS. */
static const cl_device_type GPU = CL_DEVICE_TYPE_GPU;
static const cl_uint KHRONOS[4] = {0, BUS, SLOT, 0}, NVIDIA_BUS = BUS, NVIDIA_SLOT = SLOT << 3, NVIDIA_DOMAIN = 0;
static const cl_uchar AMD[24] = {[0] = 1, [21] = BUS, [22] = SLOT};
static const struct {
    cl_device_info question;
    const char *way;
    const void *answer;
    size_t size;
} ANSWERS[] = {
    {CL_DEVICE_TYPE, "", &GPU, sizeof GPU},
    {0x410f, "khronos", KHRONOS, sizeof KHRONOS},
    {0x4008, "nvidia", &NVIDIA_BUS, sizeof NVIDIA_BUS},
    {0x4009, "nvidia", &NVIDIA_SLOT, sizeof NVIDIA_SLOT},
    {0x400a, "nvidia", &NVIDIA_DOMAIN, sizeof NVIDIA_DOMAIN},
    {0x4037, "amd", AMD, sizeof AMD},
};

static cl_int CL_API_CALL info(cl_device_id device, cl_device_info question, size_t room, void *to, size_t *size) {
    const char *way = getenv("ON_A_BUS");
    for (size_t n = 0; way != NULL && n < sizeof ANSWERS / sizeof *ANSWERS; n++) {
        if (ANSWERS[n].question != question || strstr(way, ANSWERS[n].way) == NULL) continue;
        if (to != NULL && room < ANSWERS[n].size) return CL_INVALID_VALUE;
        if (to != NULL) memcpy(to, ANSWERS[n].answer, ANSWERS[n].size);
        if (size != NULL) *size = ANSWERS[n].size;
        return CL_SUCCESS;
    }
    return real_info(device, question, room, to, size);
}

static Look pocl(void) {
    void *library = dlopen(POCL, RTLD_NOW | RTLD_LOCAL);
    return library == NULL ? NULL : (Look)dlsym(library, "clGetExtensionFunctionAddress");
}

/* All of PoCL's things lead to one table of functions, whose entry for devices becomes ours. */
static cl_int CL_API_CALL platforms(cl_uint room, cl_platform_id *to, cl_uint *count) {
    Look look = pocl();
    cl_int (*real)(cl_uint, cl_platform_id *, cl_uint *) = look == NULL ? NULL : look("clIcdGetPlatformIDsKHR");
    cl_platform_id first;
    if (real == NULL || real(1, &first, NULL) != CL_SUCCESS) return CL_PLATFORM_NOT_FOUND_KHR;
    cl_icd_dispatch *table = *(cl_icd_dispatch **)first;
    if (table->clGetDeviceInfo != info) {
        size_t page = (size_t)sysconf(_SC_PAGESIZE);
        char *begin = (char *)((size_t)&table->clGetDeviceInfo & ~(page - 1));
        if (mprotect(begin, page, PROT_READ | PROT_WRITE) != 0) return CL_OUT_OF_HOST_MEMORY;
        real_info = table->clGetDeviceInfo;
        table->clGetDeviceInfo = info;
    }
    return real(room, to, count);
}

void *clGetExtensionFunctionAddress(const char *name) {
    Look look = pocl();
    if (strcmp(name, "clIcdGetPlatformIDsKHR") == 0) return (void *)platforms;
    return look == NULL ? NULL : look(name);
}
