create table orders (
    id    text primary key,
    cents bigint not null
);
