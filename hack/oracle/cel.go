package main

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
)

func init() { topics["cel"] = answerCEL }

// celQuestion: what do these expressions say of this device?
type celQuestion struct {
	Expressions []string            `json:"expressions"`
	Driver      string              `json:"driver"`
	Device      *resourceapi.Device `json:"device"`
	// ConsumableCapacity and ListTypeAttributes are the feature gates; the second does not exist in v0.34.
	ConsumableCapacity bool `json:"consumableCapacity"`
	ListTypeAttributes bool `json:"listTypeAttributes"`
	// Derived: the expressions are those of derived attributes, not selectors (from v0.37 on).
	Derived bool `json:"derived"`
	// Repeat evaluations of each expression, for Nanoseconds; 1 if absent.
	Repeat int `json:"repeat"`
}

type celAnswers struct {
	Answers []celAnswer `json:"answers"`
}

// celAnswer: Kind is "invalid" (does not compile), "error" (fails on the device), "value" or "panic".
type celAnswer struct {
	Kind  string `json:"kind"`
	Value bool   `json:"value"`
	Error string `json:"error,omitempty"`
	// Attribute is the value of a derived attribute.
	Attribute *resourceapi.DeviceAttribute `json:"attribute,omitempty"`
	// EstimatedCost is the upper bound known before evaluation, Cost what the evaluation did cost.
	EstimatedCost uint64 `json:"estimatedCost"`
	Cost          uint64 `json:"cost"`
	// Nanoseconds of one evaluation, including what turns the device into CEL's values.
	Nanoseconds float64 `json:"nanoseconds"`
}

func answerCEL(message json.RawMessage) any {
	var question celQuestion
	if err := json.Unmarshal(message, &question); err != nil {
		return failure{err.Error()}
	}
	features := cel.Features{EnableConsumableCapacity: question.ConsumableCapacity}
	if gate := reflect.ValueOf(&features).Elem().FieldByName("EnableListTypeAttributes"); gate.IsValid() {
		gate.SetBool(question.ListTypeAttributes)
	}
	var device cel.Device
	if question.Device != nil {
		device = cel.Device{
			Driver:                   question.Driver,
			Attributes:               question.Device.Attributes,
			Capacity:                 question.Device.Capacity,
			AllowMultipleAllocations: question.Device.AllowMultipleAllocations,
		}
	}
	answers := make([]celAnswer, len(question.Expressions))
	for i, expression := range question.Expressions {
		if question.Derived {
			answers[i] = deriveCEL(expression, features, device)
		} else {
			answers[i] = evaluateCEL(expression, features, device, max(question.Repeat, 1))
		}
	}
	return celAnswers{answers}
}

func evaluateCEL(expression string, features cel.Features, device cel.Device, repeat int) (answer celAnswer) {
	defer func() {
		if cause := recover(); cause != nil {
			answer.Kind, answer.Error = "panic", fmt.Sprint(cause)
		}
	}()
	program := cel.GetCompiler(features).CompileCELExpression(expression, cel.Options{})
	answer.EstimatedCost = program.MaxCost
	if program.Error != nil {
		answer.Kind, answer.Error = "invalid", program.Error.Detail
		return answer
	}
	start := time.Now()
	for range repeat - 1 {
		_, _, _ = program.DeviceMatches(context.Background(), device)
	}
	value, details, err := program.DeviceMatches(context.Background(), device)
	answer.Nanoseconds = float64(time.Since(start).Nanoseconds()) / float64(repeat)
	if details != nil && details.ActualCost() != nil {
		answer.Cost = *details.ActualCost()
	}
	answer.Kind, answer.Value = "value", value
	if err != nil {
		answer.Kind, answer.Error = "error", err.Error()
	}
	return answer
}

// deriveCEL goes by the names of what only newer versions have.
func deriveCEL(expression string, features cel.Features, device cel.Device) (answer celAnswer) {
	defer func() {
		if cause := recover(); cause != nil {
			answer.Kind, answer.Error = "panic", fmt.Sprint(cause)
		}
	}()
	var options cel.Options
	reflect.ValueOf(&options).Elem().FieldByName("DerivedAttribute").SetBool(true)
	program := cel.GetCompiler(features).CompileCELExpression(expression, options)
	answer.EstimatedCost = program.MaxCost
	if program.Error != nil {
		answer.Kind, answer.Error = "invalid", program.Error.Detail
		return answer
	}
	arguments := []reflect.Value{reflect.ValueOf(context.Background()), reflect.ValueOf(device)}
	results := reflect.ValueOf(program).MethodByName("EvaluateDerivedAttribute").Call(arguments)
	answer.Attribute, _ = results[0].Interface().(*resourceapi.DeviceAttribute)
	answer.Cost = actualCost(results[1])
	answer.Kind = "value"
	if err, failed := results[2].Interface().(error); failed {
		answer.Kind, answer.Error = "error", err.Error()
	}
	return answer
}

// actualCost of *EvalDetails, which is nil where nothing was evaluated.
func actualCost(details reflect.Value) uint64 {
	if details.IsNil() {
		return 0
	}
	if cost, known := details.MethodByName("ActualCost").Call(nil)[0].Interface().(*uint64); known && cost != nil {
		return *cost
	}
	return 0
}
