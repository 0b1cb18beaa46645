"""A client that trusts one certificate: sends requests, prints the replies.

tls_client.py CERTIFICATE PORT CONNECTIONS BYTES
"""
import http.client
import ssl
import sys

certificate, port, connections, size = sys.argv[1], *map(int, sys.argv[2:])
context = ssl.create_default_context(cafile=certificate)
for _ in range(connections):
    client = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=60)
    for _ in range(2):
        client.request("POST", "/x", b"a" * size)
        reply = client.getresponse()
        print(reply.status, len(reply.read()), client.sock.version())
    client.close()
