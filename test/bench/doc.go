// Command bench measures the whole llmproxy server against two bare handlers
// on the same machine, in one run:
//
//	go run ./test/bench -bin bin/llmproxy
//
// # What is compared
//
//   - H, the least a hit could be: net/http, the body read into a pooled buffer
//     of its Content-Length, SHA-256 of the raw body, the answer out of a map.
//   - M, the least a miss could be: net/http, the body read in the same way, one
//     RoundTrip to the upstream, the answer copied (flushed chunk by chunk where
//     it is a stream).
//   - llmproxy with everything on: client key, cache, ledger, metrics, a JSON
//     log at level info, SQLite on a real disk.
//
// The mock upstream, H, M and llmproxy are processes of their own; the program
// itself is the load generator. It drives the server and its baseline in turn,
// A B A B, for several short rounds over keep-alive connections, because a
// machine's noise (neighbours, clock, caches) changes slower than that. Each
// answer is checked byte for byte, and the X-LLMProxy-Cache header with it.
//
// Tokens are counted in this process, by llmproxy's own tokenizer, by
// tiktoken-go and, where a folder with it is named by -npm, by the npm package
// tiktoken: no server takes part. Speeds are of the CPU time of the process, so
// with the collection of the garbage that a tokenizer leaves.
//
// Streams are of two endpoints, chat and Responses, in the same rounds: chat
// through the server, chat through M, Responses through the server, Responses
// through M. The first chunk is the first that has text of the answer, so in a
// Responses stream the fifth event; where the chunks come at once, the four
// before it count too. Of what the server adds to M, that of Responses is
// compared with that of chat.
//
// # How to read the tables
//
// A figure is the median over the rounds. A ratio is the median of the ratios
// of each round with the one beside it, with the least and the greatest in
// brackets: where the brackets are wide, the machine was busy and the run says
// little. Differences are taken in the same way. "wanted" is the bound the
// project set itself and "met" compares the two, before the ratio is rounded
// for the table; no figure ever fails the run.
// The exit status is 1 only if the measuring itself failed or a response was
// wrong: a whole answer with another status, other bytes or another cache state
// than due. Requests that got no whole answer (a broken or cut connection, a
// stream without its end) only count as errors.
//
//   - CPU/request is user and system time of the server process (utime and
//     stime of /proc/PID/stat, in ticks of 10 ms) over the requests it answered.
//     It is the figure to trust: the client and the upstream do not count.
//   - Throughput is what is left when client, server and upstream share the
//     processors. A cheap client makes the bound harder, so the client's own
//     CPU is shown.
//   - "added" is the figure through the server less that through M in the same
//     round. The ratio of two added times is not measurable if in any round the
//     noise outweighs what is added to chat.
//   - A chunk is held back if it came only after the upstream had written the
//     next. A busy machine does that too: the share of M is the machine's.
//   - Counting is wall time per count, as the server's own metric
//     llmproxy_count_seconds says, so with the wait for a processor.
//   - Resident memory is VmRSS, its peak VmHWM of /proc/PID/status.
//
// With -baselines, or without a server to measure, each baseline is compared
// with itself: every ratio should be 1.0, and how far it is from that is the
// error of this machine.
//
// The figures come from /proc, so the benchmark runs on Linux only and says so
// elsewhere.
package main
