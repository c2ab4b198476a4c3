package idempotency

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// Every test of these files runs twice: on the server, and through PgBouncer in transaction pooling, where two statements
// of a client meet in one session only if they are in one transaction. Faults of the wire strike between the service and
// PgBouncer, faults of the server behind it.
var pooledFiles = []string{"request_test.go", "wait_test.go", "faults_test.go", "table_test.go", "expiry_test.go", "rows_test.go", "hostile_test.go",
	"lease_test.go", "lease_keys_test.go", "table_lease_test.go"}

type pooledTest struct {
	name string
	test func(*testing.T)
}

var pooledTests = []pooledTest{
	{"TestAMissingKeyIsRefused", TestAMissingKeyIsRefused},
	{"TestAnInvalidKeyNeverReachesTheHandler", TestAnInvalidKeyNeverReachesTheHandler},
	{"TestARepeatGetsTheSameAnswerAndTheHandlerDoesNotRun", TestARepeatGetsTheSameAnswerAndTheHandlerDoesNotRun},
	{"TestAnswersOfEveryShapeComeBackByteForByte", TestAnswersOfEveryShapeComeBackByteForByte},
	{"TestAKeyWithAnotherRequestIsRefusedAndChangesNothing", TestAKeyWithAnotherRequestIsRefusedAndChangesNothing},
	{"TestWhatAFingerprintCovers", TestWhatAFingerprintCovers},
	{"TestTheOrderOfNamesIsIrrelevantWhatDiffersIsNot", TestTheOrderOfNamesIsIrrelevantWhatDiffersIsNot},
	{"TestFieldsThatMayDiffer", TestFieldsThatMayDiffer},
	{"TestOfManyAtOnceOneRunsAndAllGetItsAnswer", TestOfManyAtOnceOneRunsAndAllGetItsAnswer},
	{"TestARepeatWhileTheFirstRunsWaitsOrIsAConflict", TestARepeatWhileTheFirstRunsWaitsOrIsAConflict},
	{"TestAWaitingRepeatRunsWhenTheFirstFails", TestAWaitingRepeatRunsWhenTheFirstFails},
	{"TestRepeatsThatWaitHoldNoConnection", TestRepeatsThatWaitHoldNoConnection},
	{"TestAnotherKeyIsAnotherOperation", TestAnotherKeyIsAnotherOperation},
	{"TestAKeyBelongsToOnePrincipalAndOneOperation", TestAKeyBelongsToOnePrincipalAndOneOperation},
	{"TestWiderScopesNeverShowAnAnswerToSomebodyElse", TestWiderScopesNeverShowAnAnswerToSomebodyElse},
	{"TestAPrincipalThatCannotBeFoundOutIsNoRefusal", TestAPrincipalThatCannotBeFoundOutIsNoRefusal},
	{"TestWhatIsNotGuardedHearsSo", TestWhatIsNotGuardedHearsSo},
	{"TestWhichMethodsAreGuarded", TestWhichMethodsAreGuarded},
	{"TestAnOptionalKeyRunsTheHandlerInATransactionToo", TestAnOptionalKeyRunsTheHandlerInATransactionToo},
	{"TestKeysOfOtherSourcesAndForms", TestKeysOfOtherSourcesAndForms},
	{"TestALongRequestIsRefused", TestALongRequestIsRefused},
	{"TestTheLoserOfARaceGetsTheWinnersAnswer", TestTheLoserOfARaceGetsTheWinnersAnswer},
	{"TestWhatFailsLeavesNothingAndTheKeyFree", TestWhatFailsLeavesNothingAndTheKeyFree},
	{"TestAnAnswerOf4xxIsKeptAndItsWritesAreNot", TestAnAnswerOf4xxIsKeptAndItsWritesAreNot},
	{"TestAnAnswerNeverLeavesBeforeItsCommit", TestAnAnswerNeverLeavesBeforeItsCommit},
	{"TestWithoutADatabaseNobodyIsLetThrough", TestWithoutADatabaseNobodyIsLetThrough},
	{"TestAClientThatLeavesAfterTheHandlerReturnedChangesNothing", TestAClientThatLeavesAfterTheHandlerReturnedChangesNothing},
	{"TestAnAnswerTooLongToKeepIsNeverMadeAgain", TestAnAnswerTooLongToKeepIsNeverMadeAgain},
	{"TestARowThatCannotBeTrustedStopsTheRequest", TestARowThatCannotBeTrustedStopsTheRequest},
	{"TestASerializationFailureRunsTheHandlerAgain", TestASerializationFailureRunsTheHandlerAgain},
	{"TestAPanicOfAnyFunctionOfTheRouteKeepsNothing", TestAPanicOfAnyFunctionOfTheRouteKeepsNothing},
	{"TestTheFaultTable", TestTheFaultTable},
	{"TestTheFaultTableOfProcesses", TestTheFaultTableOfProcesses},
	{"TestAnExpiredKeyIsANewRequestWhoeverCleansUp", TestAnExpiredKeyIsANewRequestWhoeverCleansUp},
	{"TestATimeToLiveIsNotExtendedByReplays", TestATimeToLiveIsNotExtendedByReplays},
	{"TestAKeyDoesNotExpireWhileItsLeaseIsRenewed", TestAKeyDoesNotExpireWhileItsLeaseIsRenewed},
	{"TestARequestWhoseLeaseRunsIsNotResumed", TestARequestWhoseLeaseRunsIsNotResumed},
	{"TestManyRequestsOnAnExpiredKeyRunOnce", TestManyRequestsOnAnExpiredKeyRunOnce},
	{"TestCleanersOnManyNodesRemoveWhatIsExpiredAndNothingElse", TestCleanersOnManyNodesRemoveWhatIsExpiredAndNothingElse},
	{"TestWhatIsExpiredCanBeKeptForAudits", TestWhatIsExpiredCanBeKeptForAudits},
	{"TestRunCleansUntilItHasToStop", TestRunCleansUntilItHasToStop},
	{"TestWhoseAccountWasRevokedGetsNoStoredAnswer", TestWhoseAccountWasRevokedGetsNoStoredAnswer},
	{"TestALostAnswerToCommitIsFoundOut", TestALostAnswerToCommitIsFoundOut},
	{"TestWhatCannotBeFoundOutIsSaidToBeUnknownAndTheRetryFindsOut", TestWhatCannotBeFoundOutIsSaidToBeUnknownAndTheRetryFindsOut},
	{"TestAnAnswerOutlivesTheProcessThatGaveIt", TestAnAnswerOutlivesTheProcessThatGaveIt},
	{"TestAReplayCanBeGivenMoreHeaders", TestAReplayCanBeGivenMoreHeaders},
	{"TestTheValidityOfAKeyIsShownOnlyWhereItIsAskedFor", TestTheValidityOfAKeyIsShownOnlyWhereItIsAskedFor},
	{"TestAGuardedDeleteRepliesWhatItRepliedFirst", TestAGuardedDeleteRepliesWhatItRepliedFirst},
	{"TestAUniqueRuleOfTheTablesDoesNotMeetARetry", TestAUniqueRuleOfTheTablesDoesNotMeetARetry},
	{"TestAReplayIsDecidedBeforeConditionsAre", TestAReplayIsDecidedBeforeConditionsAre},
	{"TestTheKeyForAnotherServiceIsTheSameInEveryTry", TestTheKeyForAnotherServiceIsTheSameInEveryTry},
	{"TestAReplayHasTheFirstStatusUnlessTheRouteSaysOtherwise", TestAReplayHasTheFirstStatusUnlessTheRouteSaysOtherwise},
	{"TestOnlyHeadersThatMeanTheSameLaterAreReplayed", TestOnlyHeadersThatMeanTheSameLaterAreReplayed},
	{"TestAReferenceThatIsNoTextDoesNotCostTheEffect", TestAReferenceThatIsNoTextDoesNotCostTheEffect},
	{"TestFunctionsOfARouteMayReadTheFormAndTheHandlerHasItsBody", TestFunctionsOfARouteMayReadTheFormAndTheHandlerHasItsBody},
	{"TestARequestWithoutWhatAFingerprintNeedsIsNotRetryable", TestARequestWithoutWhatAFingerprintNeedsIsNotRetryable},
	{"TestAPrincipalThatIsNoTextIsNobody", TestAPrincipalThatIsNoTextIsNobody},
	{"TestAClientWhoseWaitIsOverLearnsThatItsRequestRuns", TestAClientWhoseWaitIsOverLearnsThatItsRequestRuns},
	{"TestALeasedRequestIsAnsweredOnceAndReplayedWithoutAWrite", TestALeasedRequestIsAnsweredOnceAndReplayedWithoutAWrite},
	{"TestARequestGoesOnAfterItsLastStep", TestARequestGoesOnAfterItsLastStep},
	{"TestAKeyWhoseProcessEndedIsInUseUntilItsLeaseRunsOut", TestAKeyWhoseProcessEndedIsInUseUntilItsLeaseRunsOut},
	{"TestAMismatchIsSaidAlsoAfterALeaseThatRanOut", TestAMismatchIsSaidAlsoAfterALeaseThatRanOut},
	{"TestOfManyRequestsAtOnceUnderALeaseOneRuns", TestOfManyRequestsAtOnceUnderALeaseOneRuns},
	{"TestRequestsThatWaitForALeaseGetItsAnswer", TestRequestsThatWaitForALeaseGetItsAnswer},
	{"TestTrap30WhoIsThawedAfterItsLeaseWritesNothing", TestTrap30WhoIsThawedAfterItsLeaseWritesNothing},
	{"TestTrap30AHandlerHearsThatItsLeaseIsLost", TestTrap30AHandlerHearsThatItsLeaseIsLost},
	{"TestALeaseIsRenewedWhileItsHandlerRuns", TestALeaseIsRenewedWhileItsHandlerRuns},
	{"TestALeaseOutlastsAStepThatTakesLonger", TestALeaseOutlastsAStepThatTakesLonger},
	{"TestARaceForAKeyIsDecidedByItsClaim", TestARaceForAKeyIsDecidedByItsClaim},
	{"TestWhatIsNotStoredUnderALeaseLeavesTheKeyToTheNextRequest", TestWhatIsNotStoredUnderALeaseLeavesTheKeyToTheNextRequest},
	{"TestAClientThatGoesAwayUnderALeaseFindsItsAnswerLater", TestAClientThatGoesAwayUnderALeaseFindsItsAnswerLater},
	{"TestOnlyAnUnfinishedRequestWithStepsOutlivesItsTTL", TestOnlyAnUnfinishedRequestWithStepsOutlivesItsTTL},
	{"TestAnExpiredKeyUnderALeaseIsANewRequestWithNewSteps", TestAnExpiredKeyUnderALeaseIsANewRequestWithNewSteps},
	{"TestARouteThatChangesItsModeNeverRunsARequestTwice", TestARouteThatChangesItsModeNeverRunsARequestTwice},
	{"TestARequestWithoutAKeyRunsUnderNoLease", TestARequestWithoutAKeyRunsUnderNoLease},
	{"TestTheFaultTableOfLeases", TestTheFaultTableOfLeases},
	{"TestALostReplyIsLookedUpAndTheRequestGoesOn", TestALostReplyIsLookedUpAndTheRequestGoesOn},
	{"TestTheFaultTableOfProcessesUnderALease", TestTheFaultTableOfProcessesUnderALease},
}

// notPooled are tests of those files that are about one session.
var notPooled = map[string]string{
	"TestEveryStatementIsUnderstoodByPostgres": "it prepares statements",
	"TestDecisionsAboutLeases":                 "it asks no database",
}

const pooledName = "TestTheSuiteThroughATransactionPooler"

func TestTheSchemaIsMadeThroughATransactionPooler(t *testing.T) {
	skip.InShort(t, "it takes 8 s beside the others")
	t.Parallel()
	for _, mode := range []string{"exec", "simple_protocol", "cache_describe"} {
		db := throughBouncer(t, pgtest.New(t), mode)
		if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
			t.Errorf("%s: %v", mode, err)
		}
	}
}

func TestTheSuiteThroughATransactionPooler(t *testing.T) {
	t.Parallel()
	modes := []pgx.QueryExecMode{pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeCacheDescribe}
	if testing.Short() {
		modes = append(modes, pgx.QueryExecModeExec)
	} else {
		for _, c := range pooledTests {
			t.Run("exec/"+c.name, c.test)
		}
	}
	// How statements are sent is pgx's affair: one test of each kind shows that the other modes work too. Describe_exec
	// does not: it parses a statement in one session and may run another's in the next.
	for _, mode := range modes {
		mode := strings.ReplaceAll(mode.String(), " ", "_")
		for _, name := range []string{
			"TestAnswersOfEveryShapeComeBackByteForByte", "TestOfManyAtOnceOneRunsAndAllGetItsAnswer",
			"TestAnAnswerOf4xxIsKeptAndItsWritesAreNot", "TestManyRequestsOnAnExpiredKeyRunOnce",
		} {
			i := slices.IndexFunc(pooledTests, func(c pooledTest) bool { return c.name == name })
			t.Run(mode+"/"+name, pooledTests[i].test)
		}
	}
}

// doorOf says by which door a test comes to its database: its name says so, as a subtest's name begins with its test's.
func doorOf(t *testing.T) (mode string, pooled bool) {
	rest, pooled := strings.CutPrefix(t.Name(), pooledName+"/")
	mode, _, _ = strings.Cut(rest, "/")
	return mode, pooled
}

// throughBouncer is a test's database as a client of PgBouncer sees it.
func throughBouncer(t *testing.T, db *pgtest.DB, mode string) *pgtest.DB {
	t.Helper()
	dsn, err := url.Parse(pgtest.Bouncer(t, db))
	if err != nil {
		t.Fatal("the pooler's address cannot be parsed")
	}
	query := dsn.Query()
	query.Set("default_query_exec_mode", mode)
	dsn.RawQuery = query.Encode()
	config, err := pgxpool.ParseConfig(dsn.String())
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = db.Config().MaxConns
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return &pgtest.DB{Pool: pool, DSN: dsn.String()}
}

func TestNoTestOfTheSuiteIsLeftOutOfThePooler(t *testing.T) {
	t.Parallel()
	for _, file := range pooledFiles {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Test") || notPooled[f.Name.Name] != "" {
				continue
			}
			if !slices.ContainsFunc(pooledTests, func(c pooledTest) bool { return c.name == f.Name.Name }) {
				t.Errorf("%s of %s runs on the server only: add it to pooledTests", f.Name.Name, file)
			}
		}
	}
}
