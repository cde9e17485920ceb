module nodekeeper.dev/e2e/testtool

go 1.26.0
