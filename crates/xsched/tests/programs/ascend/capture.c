/* Captures 100 kernels once it has read a line, while other work of its stream may be held. Then runs them. */
#include "acl.h"

int main(void) {
    open_device();
    uint64_t *counter = new_memory(sizeof *counter);
    aclrtStream stream = new_stream();
    increment(100, counter, stream);
    must(CALL(aclrtSynchronizeStream)(stream), "synchronize");
    printf("ready\n");
    fflush(stdout);
    getchar();
    aclmdlRI model;
    must(CALL(aclmdlRICaptureBegin)(stream, ACL_MODEL_RI_CAPTURE_MODE_GLOBAL), "capture");
    for (int n = 0; n < 100; n++) increment(100, counter, stream);
    must(CALL(aclmdlRICaptureEnd)(stream, &model), "capture");
    printf("captured: %s\n", *counter == 1 ? "correct" : "wrong");
    fflush(stdout);
    must(CALL(aclmdlRIExecuteAsync)(model, stream), "model");
    must(CALL(aclrtSynchronizeStream)(stream), "synchronize");
    printf("run: %s\n", *counter == 101 ? "correct" : "wrong");
    return 0;
}
