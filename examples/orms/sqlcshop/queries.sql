-- name: InsertOrder :exec
insert into orders (id, cents) values ($1, $2);

-- name: CountOrders :one
select count(*) from orders;
