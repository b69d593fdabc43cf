// A handler over HTTP, standard library only: PORT=8080 go run main.go
package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
)

var handled sync.Map // in production: a table, written in the transaction that does the work

func handle(w http.ResponseWriter, r *http.Request) {
	var order struct{ Total *int }
	if _, known := handled.Load(r.Header.Get("ce-id")); known {
		w.WriteHeader(208) // duplicate
	} else if err := json.NewDecoder(r.Body).Decode(&order); err != nil || order.Total == nil {
		http.Error(w, "no total", 400) // dead letter, INVALID_SCHEMA
	} else if *order.Total < 0 {
		w.Header().Set("Lazaret-Reason", "NEGATIVE_TOTAL")
		http.Error(w, "a negative total", 422) // dead letter
	} else if *order.Total == 0 {
		w.Header().Set("Retry-After", "30")
		http.Error(w, "not priced yet", 503) // retry, not before 30 s
	} else {
		handled.Store(r.Header.Get("ce-id"), true)
		w.WriteHeader(204)
	}
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:"+os.Getenv("PORT"))
	if err != nil {
		panic(err)
	}
	fmt.Println("listening on", listener.Addr().(*net.TCPAddr).Port)
	panic(http.Serve(listener, http.HandlerFunc(handle)))
}
