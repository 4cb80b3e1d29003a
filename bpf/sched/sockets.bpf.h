/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Who is at the other end of a socket. Reads fail safely: what is gone is all zeros. */
#ifndef OTEL_GPU_BPF_SCHED_SOCKETS_H
#define OTEL_GPU_BPF_SCHED_SOCKETS_H

#include "core/kernel_memory.bpf.h"
#include "core/kernel_types.bpf.h"
#include "events.h"

#if !defined(OTEL_GPU_NO_BTF)

#define AF_UNIX	       1
#define AF_INET	       2
#define AF_INET6       10
#define SOCK_STREAM    1
#define TCP_LISTEN     10
#define LOOPBACK_NET   127
#define UNIX_PATH_MASK 127 /* of what follows the family in the address of a local socket */

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct in6_addr {
	union {
		__u8 u6_addr8[16];
	} in6_u;
};

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
};

struct socket;

struct sock {
	struct sock_common __sk_common;
	struct socket *sk_socket;
};

struct socket {
	short type;
	struct file *file;
	struct sock *sk;
};

struct sockaddr_un {
	unsigned short sun_family;
	char sun_path[108];
};

struct unix_address {
	int len;
	struct sockaddr_un name[0];
};

struct unix_sock {
	struct unix_address *addr;
	struct sock *peer;
};

#pragma clang attribute pop

/* IPv4 in IPv6 is IPv4. */
static __always_inline bool is_mapped(const __u8 *address)
{
	const __u64 *words = (const __u64 *)address;

	return !words[0] &&
	       (__u32)words[1] == 0xffff0000; /* little-endian, as all that we run on */
}

static __always_inline bool is_loopback(const __u8 *address, bool is_v6)
{
	const __u64 *words = (const __u64 *)address;

	return is_v6 ? !words[0] && words[1] == 1ULL << 56 : address[0] == LOOPBACK_NET;
}

/* Fill in the addresses of an Internet socket: IPv4 as its four bytes. */
static __always_inline void read_addresses(struct resource *scratch, struct sock *sk, bool in_place)
{
	struct resource_identity *identity = &scratch->identity;
	__u8 *remote = identity->remote_address, *local = scratch->local_address;
	struct sock_common *common = &sk->__sk_common;
	bool is_v6 = identity->family == AF_INET6 && bpf_core_field_exists(common->skc_v6_daddr);
	__u64 *remote_words = (__u64 *)remote, *local_words = (__u64 *)local;

	identity->remote_port = __builtin_bswap16(LOAD(sk, __sk_common.skc_dport));
	scratch->local_port = LOAD(sk, __sk_common.skc_num);
	identity->is_listening = identity->socket_type == SOCK_STREAM &&
				 LOAD(sk, __sk_common.skc_state) == TCP_LISTEN;
	if (identity->is_listening)
		identity->local_port = scratch->local_port;
	if (is_v6) {
		bpf_core_read(remote, ADDRESS_BYTES, &common->skc_v6_daddr);
		bpf_core_read(local, ADDRESS_BYTES, &common->skc_v6_rcv_saddr);
		if (is_mapped(remote) && is_mapped(local)) {
			identity->family = AF_INET;
			remote_words[0] = remote_words[1] >> 32;
			local_words[0] = local_words[1] >> 32;
			remote_words[1] = local_words[1] = 0;
			is_v6 = false;
		}
	} else {
		*(__u32 *)remote = LOAD(sk, __sk_common.skc_daddr);
		*(__u32 *)local = LOAD(sk, __sk_common.skc_rcv_saddr);
	}
	/* To an address of its own host, a socket is bound to that address itself. */
	identity->is_remote =
		(remote_words[0] || remote_words[1]) && !is_loopback(remote, is_v6) &&
		(remote_words[0] != local_words[0] || remote_words[1] != local_words[1]);
}

/* A connection to elsewhere is known by its peer: a program may connect many times. */
static __always_inline void be_known_by_peer(struct resource_identity *identity)
{
	identity->inode = 0;
	identity->operations = 0;
	identity->device = 0;
}

/* The path that a local socket was bound to; of an abstract name, with an @ for the NUL. */
static __always_inline bool read_unix_path(char *to, struct unix_sock *sk)
{
	struct unix_address *address = BPF_CORE_READ(sk, addr);
	__u64 length = address ? BPF_CORE_READ(address, len) : 0;

	if (length <= sizeof(__u16))
		return false;
	length = (length - sizeof(__u16)) & UNIX_PATH_MASK;
	barrier_var(length);
	bpf_probe_read_kernel(to, length & UNIX_PATH_MASK,
			      (void *)address + bpf_core_field_offset(struct unix_address, name) +
				      sizeof(__u16));
	if (!to[0])
		to[0] = '@';
	return true;
}

#endif

#endif
