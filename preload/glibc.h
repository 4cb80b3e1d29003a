/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions that moved into libc.so.6 with glibc 2.34, by their versions of before: a program that
 * comes with an older glibc would not start with a library that needs a newer one. Those have them
 * in libdl.so.2 and libpthread.so.0, which newer ones have too.
 */
#ifndef OTEL_GPU_PRELOAD_GLIBC_H
#define OTEL_GPU_PRELOAD_GLIBC_H

#if defined(__x86_64__)
#define FIRST "GLIBC_2.2.5"
#define LATER "GLIBC_2.3.3"
#elif defined(__aarch64__)
#define FIRST "GLIBC_2.17"
#define LATER "GLIBC_2.17"
#endif

__asm__(".symver dlopen, dlopen@" FIRST);
__asm__(".symver dlclose, dlclose@" FIRST);
__asm__(".symver dladdr, dladdr@" FIRST);
__asm__(".symver dladdr1, dladdr1@" LATER);
__asm__(".symver dlvsym, dlvsym@" FIRST);
__asm__(".symver pthread_once, pthread_once@" FIRST);
__asm__(".symver pthread_key_create, pthread_key_create@" FIRST);
__asm__(".symver pthread_setspecific, pthread_setspecific@" FIRST);
__asm__(".symver pthread_sigmask, pthread_sigmask@" FIRST);

#endif
