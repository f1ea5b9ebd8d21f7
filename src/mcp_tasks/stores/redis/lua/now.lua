-- The server's time. A script and no plain TIME: in a cluster it goes to the server that has the keys.

return call('TIME')
