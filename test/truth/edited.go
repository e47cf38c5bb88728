package main

// edited names recordings that are no truth, and says why. Each was recorded
// with something that the file does not hold any more, so no count of what it
// holds can be right.
var edited = map[string]string{
	// Two answers of a mock: both are billed 10 and 1 tokens, and the second
	// continues a response called resp_1234.
	"test_openai_responses/test_openai_previous_response_id.yaml#0": "a mock's usage, the same in every answer",
	"test_openai_responses/test_openai_previous_response_id.yaml#1": "a mock's usage, the same in every answer",

	// The request named a conversation, as the names say and the first one's
	// original shows; the bill holds the turns before.
	"test_openai_responses/test_openai_conversation_id_explicit_and_auto.yaml#2":      "its member conversation is missing",
	"test_openai_responses/test_openai_conversation_id_tool_call_continuation.yaml#2": "its member conversation is missing",

	// The recorder wrote typographic characters in ASCII. With dashes for --
	// and a typographic apostrophe for the plain one in "she'd", the counts
	// equal the bills (847, 449, 872).
	"test_openai_responses/test_openai_responses_compact_stateful_mode.yaml#2":        "dashes were rewritten as --",
	"test_openai_responses/test_openai_responses_compact_stateful_mode_stream.yaml#1": "an apostrophe was rewritten",
	"test_openai_responses/test_openai_responses_compact_stateful_mode_stream.yaml#2": "an apostrophe was rewritten",
}
