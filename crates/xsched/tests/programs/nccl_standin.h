/* The part of the interface of NCCL and RCCL that the libraries in nccl_standin.c and rocr/rccl_standin.hip have. Names, types and numbers are the vendors'. */
#ifndef NCCL_H
#define NCCL_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ncclComm *ncclComm_t;
typedef struct {
    char internal[128];
} ncclUniqueId;

int ncclGetUniqueId(ncclUniqueId *id);
int ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank);
int ncclCommInitAll(ncclComm_t *comms, int devices, const int *list);
int ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *split, void *config);
int ncclCommCount(ncclComm_t comm, int *count);
int ncclCommDestroy(ncclComm_t comm);
/* Sums over all ranks. Here it only waits for all ranks. */
int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, ncclComm_t comm, void *stream);

#ifdef __cplusplus
}
#endif

#endif
