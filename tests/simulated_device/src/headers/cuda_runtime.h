// nccl.h needs only the types of the API from this header.
#include <cuda_runtime_api.h>
