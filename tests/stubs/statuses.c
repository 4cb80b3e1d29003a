/* SPDX-License-Identifier: Apache-2.0 */
/* A library of CUDA that returns another status with each call: so each is a series of its own. */
int cudaStreamSynchronize(void *stream)
{
	static int status;

	(void)stream;
	return status++ % STATUSES;
}
