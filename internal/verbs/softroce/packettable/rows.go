package packettable

import "slices"

// Rows returns the table.
func Rows() []Row {
	return slices.Concat(goodRows(), psnRows(), duplicateRows(), orderRows(), lengthRows(), accessRows(), invalidateRows(), placementRows(), sharedRows(), closedRows(), headerRows(), datagramRows())
}
