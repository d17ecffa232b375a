package main

import (
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pinfold.dev/api"
)

// offerValues has the shell complete a flag whose values are known words.
func offerValues(c *cobra.Command, f *pflag.Flag) {
	var offer cobra.CompletionFunc
	switch f.Name + " " + f.Value.Type() {
	case "reason string":
		offer = cobra.FixedCompletions(abandonReasons(), cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveKeepOrder)
	case "leftovers string":
		offer = cobra.FixedCompletions([]cobra.Completion{string(api.LeftoversKeep), string(api.LeftoversReap)}, cobra.ShellCompDirectiveNoFileComp)
	case "on-client-gone string":
		offer = cobra.FixedCompletions([]cobra.Completion{string(api.OnGoneAbandon), string(api.OnGoneDetach)}, cobra.ShellCompDirectiveNoFileComp)
	case "grade string":
		offer = cobra.FixedCompletions(append([]cobra.Completion{"auto"}, gradeNames()...), cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveKeepOrder)
	case "kinds stringSlice":
		offer = func(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
			var kinds []string
			for _, k := range api.EventKinds() {
				kinds = append(kinds, string(k))
			}
			return offerList("", typed, kinds), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
		}
	case "policy stringArray":
		offer = offerPolicy
	default:
		return
	}
	_ = c.RegisterFlagCompletionFunc(f.Name, offer)
}

// gradeNames are the grades, best first.
func gradeNames() (out []cobra.Completion) {
	for _, g := range []api.Grade{api.GradeScope, api.GradeCgroup, api.GradePIDNS, api.GradeSubreaper, api.GradeToken} {
		out = append(out, string(g))
	}
	return out
}

// abandonReasons are what a turn may be abandoned for, the usual one first.
func abandonReasons() (out []string) {
	for why := range api.DefaultPolicy() {
		if why != api.ReasonFinished && why != api.ReasonStop {
			out = append(out, string(why))
		}
	}
	slices.Sort(out)
	return append([]string{string(api.ReasonStop)}, out...)
}

// offerList goes on with words between commas, each once.
func offerList(head, typed string, words []string) (out []cobra.Completion) {
	before := ""
	if at := strings.LastIndexByte(typed, ','); at >= 0 {
		before = typed[:at+1]
	}
	for _, w := range words {
		if !slices.Contains(strings.Split(before, ","), w) {
			out = append(out, head+before+w)
		}
	}
	return out
}

// offerPolicy goes on with REASON=processes:FATE,jobs:FATE.
func offerPolicy(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	why, rule, ruled := strings.Cut(typed, "=")
	if ruled {
		var words []string
		for _, what := range []string{"processes", "jobs"} {
			for _, fate := range []api.Fate{api.FateEnd, api.FateKeep} {
				if !strings.Contains(rule[:strings.LastIndexByte(rule, ',')+1], what+":") {
					words = append(words, what+":"+string(fate))
				}
			}
		}
		return offerList(why+"=", rule, words), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
	var out []cobra.Completion
	for _, why := range slices.Sorted(maps.Keys(api.DefaultPolicy())) {
		out = append(out, string(why)+"=")
	}
	return out, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}
