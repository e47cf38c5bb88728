package cache

// place says which part of a request a value is, where the canonical form
// treats that part in its own way. Everything else is elsewhere.
type place uint8

const (
	elsewhere place = iota
	body
	prose    // text of messages, which normalisers change: a string, or parts with text
	messages // of chat
	message
	input // of the Responses API: text or items
	item
	itemOutput    // an item that answers a call
	itemReference // an item that stands for one kept upstream
	toolCalls
	toolCall
	calledFunction
	arguments // a string that holds JSON, written by the model
	newID     // an id that names a thing in this request
	oldID     // an id that refers to it
	tools
	tool
	functions
	function
	responseFormat
	schema // a JSON Schema, or a part of one: the order of its members counts
)

// member returns the place of the value of an object's member.
func (p place) member(name []byte) place {
	switch p {
	case body:
		return bodyMember(name)
	case message:
		switch string(name) {
		case "content":
			return prose
		case "tool_call_id":
			return oldID
		case "tool_calls":
			return toolCalls
		}
	case item, itemOutput:
		switch string(name) {
		case "content", "output":
			return prose
		case "arguments":
			return arguments
		case "id":
			return newID
		case "call_id":
			if p == itemOutput {
				return oldID
			}
			return newID
		}
	case toolCall:
		switch string(name) {
		case "id":
			return newID
		case "function":
			return calledFunction
		}
	case calledFunction:
		if string(name) == "arguments" {
			return arguments
		}
	case prose:
		if string(name) == "text" {
			return prose
		}
	default:
		return p.toolMember(name)
	}
	return elsewhere
}

func bodyMember(name []byte) place {
	switch string(name) {
	case "messages":
		return messages
	case "input":
		return input
	case "instructions", "prompt":
		return prose
	case "tools":
		return tools
	case "functions":
		return functions
	case "response_format", "text":
		return responseFormat
	}
	return elsewhere
}

// toolMember is member for the parts of a request that say what may be called
// and what an answer has to look like.
func (p place) toolMember(name []byte) place {
	switch p {
	case schema:
		return schema
	case tool:
		switch string(name) {
		case "function":
			return function
		case "parameters":
			return schema
		}
	case function:
		if string(name) == "parameters" {
			return schema
		}
	case responseFormat:
		switch string(name) {
		case "json_schema", "format":
			return responseFormat
		case "schema":
			return schema
		}
	}
	return elsewhere
}

// element returns the place of an array's elements.
func (p place) element() place {
	switch p {
	case messages:
		return message
	case input:
		return item
	case toolCalls:
		return toolCall
	case tools:
		return tool
	case functions:
		return function
	case prose, schema:
		return p
	}
	return elsewhere
}
