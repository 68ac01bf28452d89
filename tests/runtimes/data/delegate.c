/* A TFLite delegate for tests: a library with the two functions that TFLite's external delegates export.
 *
 * Options, all of them texts:
 *   take    number of the built-in operator whose nodes it takes (0 is ADD, 18 MUL, 22 RESHAPE, 41 SUB); default none
 *   offset  each element that it computes is the sum of the node's float inputs and this; default 1000
 *   fail    create, prepare or large: refuse to start, any model, or nodes with more than two results;
 *           size: give results of a wrong size
 * A node whose first input begins with 13 fails when it runs.
 *
 * Declared here is only what it uses; the order of members has been the same from TFLite 2.14 to 2.20.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, ERROR = 1, FLOAT32 = 1, DELEGATE_OPERATOR = 51, MOST = 64 };

typedef struct Delegate Delegate;
typedef struct Context Context;

typedef struct {
  int size;
  int data[];
} IntArray;

typedef struct {
  int type;
  union {
    float *numbers;
    void *bytes;
  } data;
  IntArray *dims;
  struct {
    float scale;
    int32_t zero_point;
  } quantization;
  int allocation_type;
  size_t bytes;
  const void *allocation;
  const char *name;
  Delegate *delegate;
  int buffer_handle;
  bool data_is_stale;
  bool is_variable;
  struct {
    int type;
    void *params;
  } new_quantization;
  void *sparsity;
  const IntArray *dims_signature;
} Tensor;

typedef struct {
  IntArray *inputs, *outputs, *intermediates, *temporaries;
  void *user_data;
  /* more members follow */
} Node;

typedef struct {
  void *(*init)(Context *, const char *buffer, size_t length);
  void (*free)(Context *, void *user_data);
  int (*prepare)(Context *, Node *);
  int (*invoke)(Context *, Node *);
  const char *(*profiling_string)(const Context *, const Node *);
  int32_t builtin_code;
  const char *custom_name;
  int version;
  void *registration_external;
  void *async_kernel;
  uint64_t inplace_operator;
} Registration;

struct Context {
  size_t tensors_size;
  int (*get_execution_plan)(Context *, IntArray **);
  Tensor *tensors;
  void *impl;
  int (*resize_tensor)(Context *, Tensor *, IntArray *);
  void (*report_error)(Context *, const char *format, ...);
  int (*add_tensors)(Context *, int count, int *first);
  int (*get_node)(Context *, int index, Node **, Registration **);
  int (*replace_nodes)(Context *, Registration, const IntArray *nodes, Delegate *);
  /* more members follow */
};

struct Delegate {
  void *data;
  int (*prepare)(Context *, Delegate *);
  void *copy_from_buffer_handle, *copy_to_buffer_handle, *free_buffer_handle;
  int64_t flags;
  void *opaque_delegate_builder;
  /* from here on our own */
  int take;
  float offset;
  char fail[16];
};

/* Read by the tests. */
int alive = 0;   /* delegates */
int most = 0;    /* delegates at a time */
int orphans = 0; /* kernels that outlived their delegate */
static Delegate *living[MOST];

static bool lives(const Delegate *delegate) {
  for (int i = 0; i < MOST; i++) {
    if (living[i] == delegate) return true;
  }
  return false;
}

static void *kernel_init(Context *context, const char *params, size_t length) {
  (void)context, (void)length;
  return *(Delegate *const *)params; /* the first member of what TFLite tells a kernel */
}

static void kernel_free(Context *context, void *delegate) {
  (void)context;
  orphans += !lives(delegate);
}

static int kernel_prepare(Context *context, Node *node) {
  const Delegate *delegate = node->user_data;
  Tensor *result = &context->tensors[node->outputs->data[0]];
  if (!strcmp(delegate->fail, "size")) {
    IntArray *shape = malloc(sizeof(IntArray) + 2 * sizeof(int));
    shape->size = 2;
    shape->data[0] = 1;
    shape->data[1] = 3;
    return context->resize_tensor(context, result, shape);
  }
  bool large = result->bytes > 2 * sizeof(float);
  return large && !strcmp(delegate->fail, "large") ? ERROR : OK;
}

static int kernel_invoke(Context *context, Node *node) {
  const Delegate *delegate = node->user_data;
  Tensor *result = &context->tensors[node->outputs->data[0]];
  size_t count = result->bytes / sizeof(float);
  for (size_t i = 0; i < count; i++) result->data.numbers[i] = delegate->offset;
  for (int k = 0; k < node->inputs->size; k++) {
    const Tensor *input = &context->tensors[node->inputs->data[k]];
    size_t size = input->bytes / sizeof(float);
    if (input->type != FLOAT32 || size == 0) continue;
    if (input->data.numbers[0] == 13) return ERROR;
    for (size_t i = 0; i < count; i++) result->data.numbers[i] += input->data.numbers[i % size];
  }
  return OK;
}

static int delegate_prepare(Context *context, Delegate *delegate) {
  IntArray *plan;
  if (!strcmp(delegate->fail, "prepare") || context->get_execution_plan(context, &plan) != OK) return ERROR;
  IntArray *nodes = malloc(sizeof(IntArray) + plan->size * sizeof(int));
  nodes->size = 0;
  for (int i = 0; i < plan->size; i++) {
    Node *node;
    Registration *registration;
    context->get_node(context, plan->data[i], &node, &registration);
    if (registration->builtin_code == delegate->take) nodes->data[nodes->size++] = plan->data[i];
  }
  Registration kernel = {.init = kernel_init,
                         .free = kernel_free,
                         .prepare = kernel_prepare,
                         .invoke = kernel_invoke,
                         .builtin_code = DELEGATE_OPERATOR,
                         .custom_name = "TestDelegate",
                         .version = 1};
  int status = nodes->size ? context->replace_nodes(context, kernel, nodes, delegate) : OK;
  free(nodes);
  return status;
}

Delegate *tflite_plugin_create_delegate(char **keys, char **values, size_t count, void (*report)(const char *)) {
  Delegate *delegate = calloc(1, sizeof *delegate);
  delegate->prepare = delegate_prepare;
  delegate->take = -1;
  delegate->offset = 1000;
  for (size_t i = 0; i < count; i++) {
    if (!strcmp(keys[i], "take")) delegate->take = atoi(values[i]);
    if (!strcmp(keys[i], "offset")) delegate->offset = (float)atof(values[i]);
    if (!strcmp(keys[i], "fail")) strncpy(delegate->fail, values[i], sizeof delegate->fail - 1);
  }
  if (!strcmp(delegate->fail, "create")) {
    report("no such device");
    free(delegate);
    return NULL;
  }
  for (int i = 0; i < MOST; i++) {
    if (living[i] == NULL) {
      living[i] = delegate;
      alive++;
      if (alive > most) most = alive;
      return delegate;
    }
  }
  free(delegate);
  return NULL;
}

void tflite_plugin_destroy_delegate(Delegate *delegate) {
  /* The Python packages also call it with NULL, after a creation that failed. */
  if (delegate == NULL) return;
  for (int i = 0; i < MOST; i++) {
    if (living[i] == delegate) living[i] = NULL;
  }
  alive--;
  free(delegate);
}
