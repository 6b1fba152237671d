// Stands in for the driver's libnvidia-ml.so.1: one card, whose power limit is not told.
#include <cstring>

extern "C" {

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }

int nvmlDeviceGetHandleByPciBusId_v2(const char* pci_bus_id, void** device) {
  static int card = 0;
  if (std::strcmp(pci_bus_id, "0000:3b:00.0") != 0) return 6;  // not found
  *device = &card;
  return 0;
}

int nvmlDeviceGetUUID(void*, char* text, unsigned int size) {
  std::strncpy(text, "GPU-0f00-ba", size);
  return 0;
}

int nvmlDeviceGetUtilizationRates(void*, unsigned int* rates) {
  rates[0] = 42;  // of kernels
  rates[1] = 7;   // of memory
  return 0;
}

int nvmlDeviceGetMemoryInfo(void*, unsigned long long* memory) {
  memory[0] = 150ULL << 30;  // total
  memory[1] = 110ULL << 30;  // free
  memory[2] = 40ULL << 30;   // used
  return 0;
}

int nvmlDeviceGetPowerUsage(void*, unsigned int* milliwatts) {
  *milliwatts = 123456;
  return 0;
}

int nvmlDeviceGetTemperature(void*, int sensor, unsigned int* celsius) {
  if (sensor != 0) return 2;  // invalid argument
  *celsius = 61;
  return 0;
}

int nvmlDeviceGetEnforcedPowerLimit(void*, unsigned int*) { return 3; }  // not supported
}
