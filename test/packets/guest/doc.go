// Package guest is the part of package packets that runs in a guest, built with the tag guest.
package guest
