/*
 * An OpenCL driver for the loader: PoCL, whose device is reported as a GPU with a PCI address. PCI_INTERFACE selects the
 * device parameter that holds the address: khronos, nvidia, amd or none.
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

/* The PCI address of the stand-in for NVIDIA's driver: 0000:00:06.0. */
enum { BUS = 0, SLOT = 6 };

typedef void *(*GetFunction)(const char *);
static cl_api_clGetDeviceInfo real_info;

/* Device parameters that are replaced, the values of PCI_INTERFACE for which they are, and the new contents. */
static const cl_device_type GPU = CL_DEVICE_TYPE_GPU;
static const cl_uint KHRONOS[4] = {0, BUS, SLOT, 0}, NVIDIA_BUS = BUS, NVIDIA_SLOT = SLOT << 3, NVIDIA_DOMAIN = 0;
static const cl_uchar AMD[24] = {[0] = 1, [21] = BUS, [22] = SLOT};
static const struct {
    cl_device_info parameter;
    const char *interface;
    const void *value;
    size_t size;
} OVERRIDES[] = {
    {CL_DEVICE_TYPE, "", &GPU, sizeof GPU},
    {0x410f, "khronos", KHRONOS, sizeof KHRONOS},
    {0x4008, "nvidia", &NVIDIA_BUS, sizeof NVIDIA_BUS},
    {0x4009, "nvidia", &NVIDIA_SLOT, sizeof NVIDIA_SLOT},
    {0x400a, "nvidia", &NVIDIA_DOMAIN, sizeof NVIDIA_DOMAIN},
    {0x4037, "amd", AMD, sizeof AMD},
};

static cl_int CL_API_CALL info(cl_device_id device, cl_device_info parameter, size_t capacity, void *value_out, size_t *size) {
    const char *interface = getenv("PCI_INTERFACE");
    for (size_t n = 0; interface != NULL && n < sizeof OVERRIDES / sizeof *OVERRIDES; n++) {
        if (OVERRIDES[n].parameter != parameter || strstr(interface, OVERRIDES[n].interface) == NULL) continue;
        if (value_out != NULL && capacity < OVERRIDES[n].size) return CL_INVALID_VALUE;
        if (value_out != NULL) memcpy(value_out, OVERRIDES[n].value, OVERRIDES[n].size);
        if (size != NULL) *size = OVERRIDES[n].size;
        return CL_SUCCESS;
    }
    return real_info(device, parameter, capacity, value_out, size);
}

static GetFunction pocl(void) {
    void *library = dlopen(POCL, RTLD_NOW | RTLD_LOCAL);
    return library == NULL ? NULL : (GetFunction)dlsym(library, "clGetExtensionFunctionAddress");
}

/* All objects of PoCL share one dispatch table. Its entry for clGetDeviceInfo is replaced. */
static cl_int CL_API_CALL platforms(cl_uint capacity, cl_platform_id *value_out, cl_uint *count) {
    GetFunction get_function = pocl();
    cl_int (*real)(cl_uint, cl_platform_id *, cl_uint *) = get_function == NULL ? NULL : get_function("clIcdGetPlatformIDsKHR");
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
    return real(capacity, value_out, count);
}

void *clGetExtensionFunctionAddress(const char *name) {
    GetFunction get_function = pocl();
    if (strcmp(name, "clIcdGetPlatformIDsKHR") == 0) return (void *)platforms;
    return get_function == NULL ? NULL : get_function(name);
}
