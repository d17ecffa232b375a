package main

import (
	"github.com/spf13/cobra"

	"pinfold.dev/api"
)

func (a *app) receiptCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "receipt TURN",
		Short: "Print the account of a turn's ending",
		Long: `Print the receipt of a turn that has ended: what was asked, by whom, what was
signalled, what was seen afterwards, what was left.

Exit status: 0 when there is a receipt, complete or not; 3 when there is none.`,
		Args: exactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			r, err := a.client().Receipt(c.Context(), args[0])
			if err != nil {
				return err
			}
			return a.print(r, func(st style) string { return renderReceipt(r, st) })
		},
	}
}

func (a *app) receiptsCmd() *cobra.Command {
	var limit int
	c := &cobra.Command{
		Use:   "receipts",
		Short: "List the receipts of ended turns, newest first",
		Args:  exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			l, err := a.client().Receipts(c.Context(), limit)
			if err != nil {
				return err
			}
			return a.print(l, func(st style) string { return renderReceipts(l.Receipts, st) })
		},
	}
	c.Flags().IntVarP(&limit, "limit", "n", 20, "at most so many")
	return c
}

func renderReceipts(l []api.Receipt, st style) string {
	t := table{head: []string{"TURN", "ENDED", "REASON", "GRADE", "RECEIPT", "PROCS", "LEFT", "LABEL"},
		right: map[int]bool{5: true, 6: true}}
	for _, r := range l {
		t.add(r.Turn, stamp(r.AskedAt), string(r.Reason), string(r.Grade), verdictWord(r),
			num(len(r.Processes)), num(len(r.Leftovers)+len(r.Survivors)), r.Label)
	}
	return t.render(st)
}
