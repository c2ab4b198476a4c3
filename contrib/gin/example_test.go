package holdfastgin_test

import (
	"net/http"

	"github.com/gin-gonic/gin"

	holdfastgin "github.com/holdfast-go/holdfast/contrib/gin"
	"github.com/holdfast-go/holdfast/idempotency"
)

func Example() {
	_ = func(guard *idempotency.Guard, refund gin.HandlerFunc) http.Handler {
		// snippet: gin
		r := gin.New()
		r.Use(gin.Recovery())
		errorsToAnswers := func(c *gin.Context) {
			if c.Next(); len(c.Errors) > 0 && !c.Writer.Written() {
				c.JSON(http.StatusInternalServerError, gin.H{"error": "try again"})
			}
		}
		r.POST("/refunds/:charge", holdfastgin.Guard(guard.Middleware), errorsToAnswers, refund)
		// end snippet
		return r
	}
}
