// Command oracle answers what Kubernetes' own DRA allocator does. It reads problems from standard input, one JSON
// document per line, and writes one answer per line, in order, until the input ends.
//
// A line {"cel": …} is a question about CEL, any other line is a problem for the allocator (type problem). A line
// that cannot be read is answered {"error": …}, and the program goes on.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
)

// topics answers lines that have this key; each file that adds one registers itself here.
var topics = map[string]func(json.RawMessage) any{}

type failure struct {
	Error string `json:"error"`
}

func main() {
	// The time of a problem should be the allocator's own, not that of cleaning up after problems before it.
	debug.SetGCPercent(400)
	input := bufio.NewReaderSize(os.Stdin, 1<<20)
	output := bufio.NewWriterSize(os.Stdout, 1<<20)
	encoder := json.NewEncoder(output)
	encoder.SetEscapeHTML(false)
	for {
		line, err := input.ReadBytes('\n')
		if len(line) > 1 {
			if err := encoder.Encode(answer(line)); err != nil {
				panic(err)
			}
			if err := output.Flush(); err != nil {
				return // nobody listens any more
			}
		}
		if err != nil {
			return
		}
	}
}

func answer(line []byte) (result any) {
	defer func() {
		if cause := recover(); cause != nil {
			result = failure{fmt.Sprintf("panic: %v", cause)}
		}
	}()
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(line, &keys); err != nil {
		return failure{err.Error()}
	}
	for topic, handle := range topics {
		if question, asked := keys[topic]; asked {
			return handle(question)
		}
	}
	var p problem
	if err := json.Unmarshal(line, &p); err != nil {
		return failure{err.Error()}
	}
	return solve(&p)
}
