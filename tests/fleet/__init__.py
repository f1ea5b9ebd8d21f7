"""Several processes of one server: replicas behind a balancer, workers, and a database between them."""
