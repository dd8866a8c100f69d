/* Where whoever walks a stack shall stop: see stack_end.py. */
#include "api.h"

/* That the return address is unknown is how an outermost frame says so (DWARF, 6.4.4). Other
 * processors go without: there, unwinders stop where they know no further. */
#if defined(__GCC_HAVE_DWARF2_CFI_ASM) && defined(__x86_64__)
#define OUTERMOST ".cfi_undefined rip"
#elif defined(__GCC_HAVE_DWARF2_CFI_ASM) && defined(__aarch64__)
#define OUTERMOST ".cfi_undefined x30"
#else
#define OUTERMOST ""
#endif

__attribute__((noinline)) void ss_stack_end(void (*call)(void *), void *argument)
{
    __asm__ volatile(OUTERMOST ::: "memory");
    call(argument);
    __asm__ volatile("" ::: "memory"); /* not a tail call, which would leave no frame */
}
