#!/bin/sh
# Makes the certificates that tests use, anew. They protect nothing: their keys are public.
# `stranger` is from an authority that nobody believes.
set -eu
cd "$(dirname "$0")"
days=36500
new_key="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"

authority() {
    openssl req -x509 $new_key -days $days -subj "/CN=$1" -keyout "$1.key" -out "$1.crt"
}

certificate() { # name, authority, alternative names
    openssl req -new $new_key -subj "/CN=$1" -keyout "$1.key" -out "$1.csr"
    printf 'subjectAltName=%s\n' "$3" > "$1.ext"
    openssl x509 -req -in "$1.csr" -CA "$2.crt" -CAkey "$2.key" -CAcreateserial \
        -days $days -extfile "$1.ext" -out "$1.crt"
}

authority ca
authority other
certificate broker ca "DNS:localhost,IP:127.0.0.1"
certificate client ca "DNS:client"
certificate stranger other "DNS:localhost,IP:127.0.0.1"
openssl ec -in client.key -aes128 -passout pass:secret -out locked.key
rm -f ./*.csr ./*.ext ./*.srl ca.key other.key other.crt
