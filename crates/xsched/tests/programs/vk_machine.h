// What the Vulkan test programs share: a device with one queue, and a command buffer that advances the words of a buffer by steps of
// a linear congruential generator, which the host can repeat. The code has no XSched in it.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <vulkan/vulkan.h>

// Mesa's CPU driver ends every loop of a shader after 65,535 iterations.
enum { WORDS = 4, MAX_STEPS = 60000 };

// layout(local_size_x = 1) in;
// layout(set = 0, binding = 0) buffer Words { uint words[]; };
// layout(push_constant) uniform Arguments { uint steps; };
// void main() {
//     uint word = words[gl_GlobalInvocationID.x];
//     for (uint n = 0; n < steps; n++) word = word * 1664525u + 1013904223u;
//     words[gl_GlobalInvocationID.x] = word;
// }
static const uint32_t SHADER[] = {
    0x7230203, 0x10000, 0x8000b, 0x36, 0x0, 0x20011, 0x1, 0x6000b, 0x1, 0x4c534c47,
    0x6474732e, 0x3035342e, 0x0, 0x3000e, 0x0, 0x1, 0x6000f, 0x5, 0x4, 0x6e69616d,
    0x0, 0x11, 0x60010, 0x4, 0x11, 0x1, 0x1, 0x1, 0x30003, 0x2,
    0x1c2, 0x40005, 0x4, 0x6e69616d, 0x0, 0x40005, 0x8, 0x64726f77, 0x0, 0x40005,
    0xa, 0x64726f57, 0x73, 0x50006, 0xa, 0x0, 0x64726f77, 0x73, 0x30005, 0xc,
    0x0, 0x80005, 0x11, 0x475f6c67, 0x61626f6c, 0x766e496c, 0x7461636f, 0x496e6f69, 0x44, 0x30005,
    0x19, 0x6e, 0x50005, 0x20, 0x75677241, 0x746e656d, 0x73, 0x50006, 0x20, 0x0,
    0x70657473, 0x73, 0x30005, 0x22, 0x0, 0x40047, 0x9, 0x6, 0x4, 0x50048,
    0xa, 0x0, 0x23, 0x0, 0x30047, 0xa, 0x3, 0x40047, 0xc, 0x22,
    0x0, 0x40047, 0xc, 0x21, 0x0, 0x40047, 0x11, 0xb, 0x1c, 0x50048,
    0x20, 0x0, 0x23, 0x0, 0x30047, 0x20, 0x2, 0x40047, 0x35, 0xb,
    0x19, 0x20013, 0x2, 0x30021, 0x3, 0x2, 0x40015, 0x6, 0x20, 0x0,
    0x40020, 0x7, 0x7, 0x6, 0x3001d, 0x9, 0x6, 0x3001e, 0xa, 0x9,
    0x40020, 0xb, 0x2, 0xa, 0x4003b, 0xb, 0xc, 0x2, 0x40015, 0xd,
    0x20, 0x1, 0x4002b, 0xd, 0xe, 0x0, 0x40017, 0xf, 0x6, 0x3,
    0x40020, 0x10, 0x1, 0xf, 0x4003b, 0x10, 0x11, 0x1, 0x4002b, 0x6,
    0x12, 0x0, 0x40020, 0x13, 0x1, 0x6, 0x40020, 0x16, 0x2, 0x6,
    0x3001e, 0x20, 0x6, 0x40020, 0x21, 0x9, 0x20, 0x4003b, 0x21, 0x22,
    0x9, 0x40020, 0x23, 0x9, 0x6, 0x20014, 0x26, 0x4002b, 0x6, 0x29,
    0x19660d, 0x4002b, 0x6, 0x2b, 0x3c6ef35f, 0x4002b, 0xd, 0x2e, 0x1, 0x4002b,
    0x6, 0x34, 0x1, 0x6002c, 0xf, 0x35, 0x34, 0x34, 0x34, 0x50036,
    0x2, 0x4, 0x0, 0x3, 0x200f8, 0x5, 0x4003b, 0x7, 0x8, 0x7,
    0x4003b, 0x7, 0x19, 0x7, 0x50041, 0x13, 0x14, 0x11, 0x12, 0x4003d,
    0x6, 0x15, 0x14, 0x60041, 0x16, 0x17, 0xc, 0xe, 0x15, 0x4003d,
    0x6, 0x18, 0x17, 0x3003e, 0x8, 0x18, 0x3003e, 0x19, 0x12, 0x200f9,
    0x1a, 0x200f8, 0x1a, 0x400f6, 0x1c, 0x1d, 0x0, 0x200f9, 0x1e, 0x200f8,
    0x1e, 0x4003d, 0x6, 0x1f, 0x19, 0x50041, 0x23, 0x24, 0x22, 0xe,
    0x4003d, 0x6, 0x25, 0x24, 0x500b0, 0x26, 0x27, 0x1f, 0x25, 0x400fa,
    0x27, 0x1b, 0x1c, 0x200f8, 0x1b, 0x4003d, 0x6, 0x28, 0x8, 0x50084,
    0x6, 0x2a, 0x28, 0x29, 0x50080, 0x6, 0x2c, 0x2a, 0x2b, 0x3003e,
    0x8, 0x2c, 0x200f9, 0x1d, 0x200f8, 0x1d, 0x4003d, 0x6, 0x2d, 0x19,
    0x50080, 0x6, 0x2f, 0x2d, 0x2e, 0x3003e, 0x19, 0x2f, 0x200f9, 0x1a,
    0x200f8, 0x1c, 0x50041, 0x13, 0x30, 0x11, 0x12, 0x4003d, 0x6, 0x31,
    0x30, 0x4003d, 0x6, 0x32, 0x8, 0x60041, 0x16, 0x33, 0xc, 0xe,
    0x31, 0x3003e, 0x33, 0x32, 0x100fd, 0x10038,
};

static uint32_t advanced(uint32_t word, uint64_t steps) {
    while (steps-- > 0) word = word * 1664525u + 1013904223u;
    return word;
}

static void check(VkResult result, const char *what) {
    if (result != VK_SUCCESS) {
        printf("%s: error %d\n", what, result);
        exit(1);
    }
}

typedef struct {
    VkInstance instance;
    VkPhysicalDevice physical;
    VkDevice device;
    VkQueue queue;
    VkCommandPool commands;
    VkDescriptorPool descriptors;
    VkDescriptorSetLayout set_layout;
    VkPipelineLayout layout;
    VkPipeline pipeline;
    VkShaderModule shader;
    VkBuffer buffer;
    VkDeviceMemory memory;
    volatile uint32_t *words;
} Machine;

static void create_instance(Machine *m) {
    VkApplicationInfo application = {VK_STRUCTURE_TYPE_APPLICATION_INFO, .apiVersion = VK_API_VERSION_1_3};
    VkInstanceCreateInfo info = {VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, .pApplicationInfo = &application};
    check(vkCreateInstance(&info, NULL, &m->instance), "instance");
    uint32_t one = 1;
    VkResult result = vkEnumeratePhysicalDevices(m->instance, &one, &m->physical);
    if (result != VK_INCOMPLETE) check(result, "devices");
    if (one == 0) check(VK_ERROR_INITIALIZATION_FAILED, "no device");
}

static void create_device(Machine *m) {
    float priority = 1;
    VkPhysicalDeviceVulkan13Features features_13 = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES, .synchronization2 = 1};
    VkPhysicalDeviceVulkan12Features features_12 = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES, &features_13, .timelineSemaphore = 1};
    VkDeviceQueueCreateInfo queue = {VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, .queueCount = 1, .pQueuePriorities = &priority};
    VkDeviceCreateInfo info = {VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, &features_12, .queueCreateInfoCount = 1, .pQueueCreateInfos = &queue};
    check(vkCreateDevice(m->physical, &info, NULL, &m->device), "device");
    vkGetDeviceQueue(m->device, 0, 0, &m->queue);
}

static void create_pipeline(Machine *m) {
    VkDescriptorSetLayoutBinding binding = {0, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, VK_SHADER_STAGE_COMPUTE_BIT, NULL};
    VkDescriptorSetLayoutCreateInfo set = {VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO, .bindingCount = 1, .pBindings = &binding};
    check(vkCreateDescriptorSetLayout(m->device, &set, NULL, &m->set_layout), "set layout");
    VkPushConstantRange arguments = {VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof(uint32_t)};
    VkPipelineLayoutCreateInfo layout = {VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO, .setLayoutCount = 1,
        .pSetLayouts = &m->set_layout, .pushConstantRangeCount = 1, .pPushConstantRanges = &arguments};
    check(vkCreatePipelineLayout(m->device, &layout, NULL, &m->layout), "layout");
    VkShaderModuleCreateInfo shader = {VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, .codeSize = sizeof SHADER, .pCode = SHADER};
    check(vkCreateShaderModule(m->device, &shader, NULL, &m->shader), "shader");
    VkComputePipelineCreateInfo pipeline = {VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO, .layout = m->layout,
        .stage = {VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO, .stage = VK_SHADER_STAGE_COMPUTE_BIT, .module = m->shader, .pName = "main"}};
    check(vkCreateComputePipelines(m->device, VK_NULL_HANDLE, 1, &pipeline, NULL, &m->pipeline), "pipeline");
}

static void create_buffer(Machine *m) {
    VkBufferCreateInfo buffer = {VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = WORDS * sizeof(uint32_t), .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT};
    check(vkCreateBuffer(m->device, &buffer, NULL, &m->buffer), "buffer");
    VkMemoryRequirements needs;
    vkGetBufferMemoryRequirements(m->device, m->buffer, &needs);
    VkPhysicalDeviceMemoryProperties memories;
    vkGetPhysicalDeviceMemoryProperties(m->physical, &memories);
    VkMemoryPropertyFlags mappable = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    uint32_t kind = 0;
    while (!(needs.memoryTypeBits >> kind & 1) || (memories.memoryTypes[kind].propertyFlags & mappable) != mappable) kind++;
    VkMemoryAllocateInfo memory = {VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .allocationSize = needs.size, .memoryTypeIndex = kind};
    check(vkAllocateMemory(m->device, &memory, NULL, &m->memory), "memory");
    check(vkBindBufferMemory(m->device, m->buffer, m->memory, 0), "binding memory");
    check(vkMapMemory(m->device, m->memory, 0, VK_WHOLE_SIZE, 0, (void **)&m->words), "mapping memory");
    for (uint32_t n = 0; n < WORDS; n++) m->words[n] = n;
    VkCommandPoolCreateInfo commands = {VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO};
    check(vkCreateCommandPool(m->device, &commands, NULL, &m->commands), "command pool");
    VkDescriptorPoolSize size = {VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 64};
    VkDescriptorPoolCreateInfo descriptors = {VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO, .maxSets = 64, .poolSizeCount = 1, .pPoolSizes = &size};
    check(vkCreateDescriptorPool(m->device, &descriptors, NULL, &m->descriptors), "descriptor pool");
}

static void open_machine(Machine *m) {
    create_instance(m);
    create_device(m);
    create_pipeline(m);
    create_buffer(m);
}

// Destroys everything, so that the end of a device is tested too.
static void close_machine(Machine *m) {
    vkDestroyDescriptorPool(m->device, m->descriptors, NULL);
    vkDestroyCommandPool(m->device, m->commands, NULL);
    vkDestroyBuffer(m->device, m->buffer, NULL);
    vkFreeMemory(m->device, m->memory, NULL);
    vkDestroyPipeline(m->device, m->pipeline, NULL);
    vkDestroyShaderModule(m->device, m->shader, NULL);
    vkDestroyPipelineLayout(m->device, m->layout, NULL);
    vkDestroyDescriptorSetLayout(m->device, m->set_layout, NULL);
    vkDestroyDevice(m->device, NULL);
    vkDestroyInstance(m->instance, NULL);
}

// A command buffer that can be submitted repeatedly. It first waits for `event`, if there is one.
static VkCommandBuffer record(Machine *m, uint32_t steps, VkEvent event) {
    if (steps > MAX_STEPS) exit(64);
    VkDescriptorSetAllocateInfo allocate_set = {VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO, .descriptorPool = m->descriptors,
        .descriptorSetCount = 1, .pSetLayouts = &m->set_layout};
    VkDescriptorSet set;
    check(vkAllocateDescriptorSets(m->device, &allocate_set, &set), "descriptor set");
    VkDescriptorBufferInfo whole = {m->buffer, 0, VK_WHOLE_SIZE};
    VkWriteDescriptorSet write = {VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET, .dstSet = set, .descriptorCount = 1,
        .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, .pBufferInfo = &whole};
    vkUpdateDescriptorSets(m->device, 1, &write, 0, NULL);
    VkCommandBufferAllocateInfo allocate = {VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, .commandPool = m->commands, .commandBufferCount = 1};
    VkCommandBuffer commands;
    check(vkAllocateCommandBuffers(m->device, &allocate, &commands), "command buffer");
    VkCommandBufferBeginInfo begin = {VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO, .flags = VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT};
    check(vkBeginCommandBuffer(commands, &begin), "begin");
    if (event) {
        vkCmdWaitEvents(commands, 1, &event, VK_PIPELINE_STAGE_HOST_BIT, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, 0, NULL, 0, NULL, 0, NULL);
    }
    vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, m->pipeline);
    vkCmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, m->layout, 0, 1, &set, 0, NULL);
    vkCmdPushConstants(commands, m->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof steps, &steps);
    vkCmdDispatch(commands, WORDS, 1, 1);
    VkMemoryBarrier barrier = {VK_STRUCTURE_TYPE_MEMORY_BARRIER, NULL, VK_ACCESS_SHADER_WRITE_BIT,
        VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_HOST_READ_BIT};
    vkCmdPipelineBarrier(commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_HOST_BIT,
        0, 1, &barrier, 0, NULL, 0, NULL);
    check(vkEndCommandBuffer(commands), "end");
    return commands;
}

static VkFence create_fence(Machine *m) {
    VkFenceCreateInfo info = {VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    VkFence fence;
    check(vkCreateFence(m->device, &info, NULL, &fence), "fence");
    return fence;
}

static void submit(Machine *m, VkCommandBuffer commands, VkFence fence) {
    VkSubmitInfo batch = {VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &commands};
    check(vkQueueSubmit(m->queue, 1, &batch, fence), "submit");
}

// Waits for a fence and makes it usable again.
static void await(Machine *m, VkFence fence) {
    check(vkWaitForFences(m->device, 1, &fence, 1, UINT64_MAX), "wait");
    check(vkResetFences(m->device, 1, &fence), "reset");
}

static const char *verdict(Machine *m, uint64_t steps) {
    for (uint32_t n = 0; n < WORDS; n++) {
        if (m->words[n] != advanced(n, steps)) return "wrong";
    }
    return "correct";
}
